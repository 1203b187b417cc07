"""What is said about code and settings that are not where Django, or this package, looks for them.

Receives the settings, the apps and the open transactions; returns errors and their words.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from django.apps import apps
from django.db import connections
from django.db.backends.base import base
from django.db.transaction import TransactionManagementError

from reliable_mq.app.application import ReliableMQ
from reliable_mq.app.loading import own_place
from reliable_mq.contrib.django.configuration import SETTING, aliases
from reliable_mq.contrib.django.sql_dialects import is_closed_by_handler, is_in_own_block
from reliable_mq.errors import ConfigurationError, UsageError

_APP = "reliable_mq.contrib.django"
_WRAPPER_FILE = str(base.__file__)
_HOOK_CALLERS = ("run_and_clear_commit_hooks", "on_commit")
_CAUGHT = (
    "an error of the database was caught, and its transaction can only be rolled back: put the "
    "step that may fail into its own `with transaction.atomic():`, and catch it around that"
)
_CLOSED = (
    "the handler has closed Django's connection, which has its transaction: leave "
    "connection.close(), connections.close_all() and close_old_connections() out; the worker "
    "renews connections by itself"
)
_IN_ERROR = 3
"""The status of a transaction that PostgreSQL has aborted, of psycopg and psycopg2."""
_FORBIDDEN = {
    "forbidden when an 'atomic' block is active": (
        "a handler runs in a transaction, which is committed when it returns: leave "
        "transaction.commit(), rollback() and set_autocommit() out; raise an exception to roll back"
    ),
    "durable atomic block cannot be nested": (
        "a handler runs in a transaction already: write transaction.atomic() without durable=True"
    ),
    "execute queries until the end of the 'atomic' block": _CAUGHT,
}
"""What Django says -> what to do, if it says so in a handler."""
_OTHER_NAMES = ("consumer", "handler", "handlers", "listeners", "receivers", "subscribers", "tasks")
"""Modules of an app in which people write consumers, though only `consumers` is imported."""


def check_installed() -> None:
    """Check that the app is installed, as soon as Django knows its apps.

    Raises:
        ConfigurationError: it is not.
    """
    if apps.apps_ready and not apps.is_installed(_APP):
        raise ConfigurationError(
            f"{_APP!r} is not in INSTALLED_APPS: add it there, then run python manage.py migrate"
        )


def not_in_block(alias: str, using: str | None) -> UsageError:
    """Return the error of a message for a database that has no open transaction here.

    Args:
        alias: the database of the message.
        using: the alias that the caller gave; None: it gave none.
    """
    others = [each for each in connections.settings if is_in_own_block(each)]
    if using is None and others:
        other = others[-1]
        if other in aliases():
            how = f"write mq.send(…, using={other!r})"
        else:
            listed = ", ".join(repr(each) for each in (*aliases(), other))
            how = f"set {SETTING}['DATABASES'] = [{listed}], and write mq.send(…, using={other!r})"
        return UsageError(
            f"the open transaction is one of {other!r}, and the message would be in {alias!r}: "
            f"{how}"
        )
    if _is_in_hook():
        return UsageError(
            "mq.send(…) in transaction.on_commit: the transaction has ended, and a death before "
            "the hook would lose the message: write mq.send(…) into the block itself, it is sent "
            "after the COMMIT"
        )
    block = "transaction.atomic()" if using is None else f"transaction.atomic(using={using!r})"
    return UsageError(
        f"no transaction is open, so a message could be sent without your rows: write "
        f"`with {block}:` around them and mq.send(…); in an async view, put the block into "
        "a function, and call that by sync_to_async"
    )


def check_not_broken(alias: str) -> None:
    """Check that the open transaction of a database may still commit.

    Raises:
        UsageError: an error has marked it for a rollback.
    """
    if connections[alias].needs_rollback:
        raise UsageError(_CAUGHT)


def _is_in_hook() -> bool:
    """Return whether this code runs in a hook of `transaction.on_commit`."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name in _HOOK_CALLERS and frame.f_code.co_filename == _WRAPPER_FILE:
            return True
        frame = frame.f_back
    return False


def forbidden_in_handler(error: Exception) -> UsageError | None:
    """Return what to do about an error that Django raises because a handler has a transaction.

    None: it is another error.
    """
    said = str(error)
    for words, how in _FORBIDDEN.items():
        if words in said and isinstance(error, TransactionManagementError | RuntimeError):
            place = own_place(error)
            return UsageError(f"{place and f'{place}: '}{how}")
    return None


def check_transaction_left(alias: str) -> None:
    """Check that a handler, or an error in it, has left its transaction open and usable.

    Args:
        alias: the database of the handler's effect.

    Raises:
        UsageError: the handler closed the connection, or caught an error of the database.
    """
    wrapper = connections[alias]
    if is_closed_by_handler(wrapper):
        raise UsageError(_CLOSED)
    status = getattr(getattr(wrapper.connection, "info", None), "transaction_status", None)
    if wrapper.in_atomic_block and status == _IN_ERROR:
        raise UsageError(_CAUGHT)


def closed_in_handler(alias: str) -> UsageError | None:
    """Return what to do about an error that follows from a close by the handler; None: another."""
    return UsageError(_CLOSED) if is_closed_by_handler(connections[alias]) else None


def without_consumers(name: str) -> str:
    """Return what to do if no consumer of a project was imported.

    Args:
        name: the name of the application.
    """
    found = next(misnamed_consumers(), None) or next(objects_of_their_own(), None)
    if found is None:
        return (
            f"application {name} has no consumers: write @mq.consumer(…) in a module consumers.py "
            "of an app of INSTALLED_APPS"
        )
    return f"application {name} has no consumers: {found}"


def misnamed_consumers() -> Iterator[str]:
    """Yield a sentence about each module with consumers that nothing imports."""
    for app in apps.get_app_configs():
        for name in _OTHER_NAMES:
            path = Path(app.path, f"{name}.py")
            if path.is_file() and _has_consumers(f"{app.name}.{name}", path):
                yield (
                    f"{app.name}/{name}.py has consumers, and only consumers.py is imported: "
                    f"rename it, or import it in {app.name}/consumers.py"
                )


def objects_of_their_own() -> Iterator[str]:
    """Yield a sentence about each application with consumers that a module made for itself."""
    own = [app.name for app in apps.get_app_configs() if app.name != _APP]
    for name, module in sorted(sys.modules.items()):
        if not any(name == each or name.startswith(f"{each}.") for each in own):
            continue
        for variable, value in list(vars(module).items()):
            if type(value) is ReliableMQ and value.consumer_groups:
                yield (
                    f"{name}.{variable} is a ReliableMQ of its own, and python manage.py "
                    "reliable_mq run does not run its consumers: write `from "
                    f"reliable_mq.contrib.django import mq` there, and leave ReliableMQ(…) out"
                )


def started_too_early() -> str:
    """Return what to do about `mq.start()` while Django starts; "": Django has started."""
    if apps.ready or not apps.models_ready:
        return ""
    return (
        "mq.start() while Django starts, as in AppConfig.ready: each process of the project "
        "consumes messages, also migrate and every web worker: leave it out, and run "
        "python manage.py reliable_mq run"
    )


def _has_consumers(module: str, path: Path) -> bool:
    return module not in sys.modules and "mq.consumer(" in path.read_text("utf-8", "replace")
