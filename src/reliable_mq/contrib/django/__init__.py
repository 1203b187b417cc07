"""Django: messages inside of `transaction.atomic()`, and consumers that use the ORM.

    INSTALLED_APPS = [..., "reliable_mq.contrib.django"]
    RELIABLE_MQ = {"BROKER": "127.0.0.1:9876"}

    from reliable_mq.contrib.django import mq

    with transaction.atomic():
        order = Order.objects.create(item="tea")
        mq.send("orders", {"id": order.id})

Each app may have a module `consumers`; it is imported at the start.
"""

from typing import TYPE_CHECKING, Any

from reliable_mq.extras import extra_of

with extra_of("reliable_mq.contrib.django"):
    import django as _django  # noqa: F401 - say which extra is missing

if TYPE_CHECKING:
    from reliable_mq.contrib.django.application import DjangoMQ

    mq: DjangoMQ

__all__ = ["mq"]


def __getattr__(name: str) -> Any:
    if name != "mq":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from reliable_mq.contrib.django.application import shared  # noqa: PLC0415 - needs settings

    return shared()
