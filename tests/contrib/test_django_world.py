"""`MessageWorld` with a project of Django: its ORM and its database, everything else in memory."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from tests.contrib.django_project import project, set_up

from reliable_mq.contrib.django.application import DjangoMQ
from reliable_mq.testing.message_world import MessageWorld

set_up()

from tests.contrib.django_shop.models import Order, Payment  # noqa: E402 - after the settings


@pytest.fixture
def mq(database_url: str) -> Iterator[DjangoMQ]:
    with project(database_url) as made:

        @made.consumer("orders", group="payments")
        def pay(order: dict[str, Any]) -> None:
            Payment.objects.create(message=str(order["id"]))
            made.send("paid", order, required_groups=())

        yield made


def place(mq: DjangoMQ) -> int:
    with transaction.atomic():
        order = Order.objects.create(item="tea")
        mq.send("orders", {"id": order.pk})
    return int(order.pk)


def payments_of(number: int) -> int:
    return int(Payment.objects.filter(message=str(number)).count())


def test_consumers_handle_what_a_block_has_committed(mq: DjangoMQ) -> None:
    with MessageWorld(mq) as world:
        number = place(mq)
        world.assert_sent("orders", {"id": number})

        world.deliver()

        world.assert_sent("paid", {"id": number})
        assert payments_of(number) == 1


def test_an_effect_is_there_once_whatever_fails_and_whoever_dies(mq: DjangoMQ) -> None:
    with MessageWorld(mq) as world:
        world.assert_effect_once(lambda: place(mq), payments_of)
