"""Django in one file: messages inside of `atomic`, and a consumer that uses the ORM.

A project has its settings, models and consumers in modules of their own; see docs/how-to/django.md.
"""

from threading import Event
from typing import Any

import django
from django.apps import AppConfig
from django.conf import settings
from django.core.management import call_command
from django.db import connection, models, transaction

settings.configure(
    INSTALLED_APPS=["reliable_mq.contrib.django", "__main__.ShopConfig"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": "shop.sqlite3",
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
    },
    RELIABLE_MQ={"NAME": "shop", "BROKER": "embedded:broker"},
    USE_TZ=True,
)


class ShopConfig(AppConfig):
    """The app of this file."""

    name = "__main__"
    label = "shop"
    path = "."
    default_auto_field = "django.db.models.BigAutoField"


if __name__ == "__main__":
    django.setup()

    from reliable_mq.contrib.django import mq

    class Order(models.Model):
        """An order."""

        item = models.CharField(max_length=100)
        is_paid = models.BooleanField(default=False)

        class Meta:
            """It belongs to the app of this file."""

            app_label = "shop"

    paid = Event()

    @mq.consumer("orders", group="payments")
    def take_payment(placed: dict[str, Any]) -> None:
        """Take the payment; it commits together with the note that this message is done."""
        order = Order.objects.get(id=placed["id"])
        order.is_paid = True
        order.save()
        transaction.on_commit(paid.set)

    def place(item: str) -> None:
        """Write an order and announce it: both, or neither."""
        with transaction.atomic():
            order = Order.objects.create(item=item)
            mq.send("orders", {"id": order.pk})
            if item == "rum":
                raise ValueError("no rum is left")

    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:  # instead of a migration of the app
        editor.create_model(Order)
    with mq:
        for item in ("rum", "tea"):
            try:
                place(item)
            except ValueError as error:
                print(item, "is not placed:", error)
        paid.wait(timeout=60)
    print("paid:", *Order.objects.filter(is_paid=True).values_list("item", flat=True))
