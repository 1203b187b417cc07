"""The probes of a Django project answer without a transaction."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import Client, override_settings
from django.urls import include, path
from prometheus_client import CollectorRegistry
from tests.contrib.django_project import database_of, project, set_up, use

from reliable_mq.contrib.django.application import DjangoMQ

set_up()

URLS = (path("health/", include("reliable_mq.contrib.django.urls")),)


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[DjangoMQ]:
    with (
        project(f"sqlite:///{tmp_path / 'shop.db'}") as made,
        override_settings(ROOT_URLCONF=URLS, ALLOWED_HOSTS=["testserver"]),
    ):
        yield made


def test_a_project_that_works_is_alive_and_ready(mq: DjangoMQ) -> None:
    live, ready = (Client().get(f"/health/{each}") for each in ("live", "ready"))

    assert (live.status_code, live.json()["checks"]) == (200, {"event loop": "ok"})
    assert (ready.status_code, ready.json()["checks"]) == (200, {"database default": "ok"})


def test_metrics_call_a_database_by_its_alias(mq: DjangoMQ) -> None:
    registry = CollectorRegistry()
    mq.meter(registry).register_databases()

    assert registry.get_sample_value("reliable_mq_database_up", {"database": "default"}) == 1


def test_a_database_that_is_away_makes_nothing_look_dead(mq: DjangoMQ) -> None:
    """Given ATOMIC_REQUESTS: each other view would begin with a connection."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away = database_of(f"postgresql+psycopg://shop@127.0.0.1:{nobody.getsockname()[1]}/shop")
        use({"default": {**away, "ATOMIC_REQUESTS": True}})

        live = Client(raise_request_exception=False).get("/health/live")

    assert live.status_code == 200
