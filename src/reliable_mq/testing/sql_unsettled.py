"""Which stubs are not settled in a world, and what to do about it."""

from collections.abc import Collection, Iterable

from sqlalchemy import select

from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_database import Database


def unsettled_stubs(databases: Iterable[Database]) -> dict[str, list[str]]:
    """Return the stubs that wait: message ids, and the consumer groups that each must reach."""
    found: dict[str, list[str]] = {}
    for database in databases:
        stub = database.stubs.c
        waiting = select(stub.message_id, stub.required_groups).where(
            stub.status == StubStatus.UNCONFIRMED.value, stub.given_up.is_(False)
        )
        with database.engine.connect() as connection:
            for message_id, groups in connection.execute(waiting):
                found[message_id] = [each for each in groups.split(",") if each]
    return found


def problem_of(unsettled: dict[str, list[str]], handled: Collection[str]) -> str:
    """Return what to say of unsettled stubs.

    Args:
        unsettled: see `unsettled_stubs`.
        handled: the consumer groups that have a handler in the application.
    """
    missing = sorted({group for each in unsettled.values() for group in each} - {*handled})
    said = f"these stubs are not settled: {list(unsettled)}"
    if not missing:
        return said
    groups = f"group{'s' * (len(missing) > 1)} {', '.join(missing)}"
    return f"{said}; they wait for {groups}, and no imported module has a handler: import it"
