"""A Django project inside the test process, on one database after another."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import django
import pymysql
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from sqlalchemy import make_url

from reliable_mq.contrib.django import application
from reliable_mq.contrib.django.application import DjangoMQ

APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "reliable_mq.contrib.django",
    "tests.contrib.django_shop",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ENGINES = {"sqlite": "sqlite3", "postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql"}

pymysql.version_info = (2, 2, 8, "final", 0)  # Django asks mysqlclient for its version
pymysql.install_as_MySQLdb()


def database_of(url: str) -> dict[str, Any]:
    """Return the entry of DATABASES for a URL of SQLAlchemy."""
    read = make_url(url)
    kind = read.get_backend_name()
    entry: dict[str, Any] = {
        "ENGINE": f"django.db.backends.{ENGINES[kind]}",
        "NAME": read.database,
        "USER": read.username or "",
        "PASSWORD": read.password or "",
        "HOST": read.host or "",
        "PORT": str(read.port or ""),
    }
    if kind == "sqlite":
        entry["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
    return entry


def set_up() -> None:
    """Configure Django, once in this process."""
    if settings.configured:
        return
    settings.configure(
        SECRET_KEY="only for tests",
        INSTALLED_APPS=APPS,
        MIDDLEWARE=MIDDLEWARE,
        ROOT_URLCONF="tests.contrib.django_shop.urls",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "never-used.db"}},
        RELIABLE_MQ={"NAME": "shop", "BROKER": "127.0.0.1:1"},
        USE_TZ=True,
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "APP_DIRS": True,
                "OPTIONS": {
                    "context_processors": [
                        "django.template.context_processors.request",
                        "django.contrib.auth.context_processors.auth",
                        "django.contrib.messages.context_processors.messages",
                    ]
                },
            }
        ],
    )
    django.setup()


def use(databases: dict[str, dict[str, Any]]) -> None:
    """Let Django use these databases instead of the ones before."""
    connections.close_all()
    for alias in list(connections):
        if hasattr(connections._connections, alias):
            del connections[alias]
    connections.settings = connections.configure_settings(databases)


@contextmanager
def project(url: str, *apps: str, migrated: bool = True, **databases: str) -> Iterator[DjangoMQ]:
    """Give the messaging of a project on an empty database, with the tables of these apps, too."""
    set_up()
    use({"default": database_of(url), **{name: database_of(u) for name, u in databases.items()}})
    mq = DjangoMQ.of_settings()
    application._made[:] = [mq]
    try:
        if migrated:
            for app in ("reliable_mq", "django_shop", *apps):
                call_command("migrate", app, verbosity=0)
        yield mq
    finally:
        mq.close()
        application._made.clear()
        connections.close_all()
