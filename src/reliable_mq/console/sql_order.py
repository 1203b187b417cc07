"""Finds the message behind which another one of its ordering key waits, in the database of both.

Receives the rows of one message. Reads the oldest unsettled stubs of the key by their index, and
the consume logs of these few. Once a message with a delay is sent, it waits for none, and none
waits for it. Until then its send waits, and is waited for, as any other.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import literal_column, not_, or_, select

from reliable_mq.console.sources import ConsoleSources, ask
from reliable_mq.database.row_values import LogState, StubStatus
from reliable_mq.escalate.timeline import MessageHistory
from reliable_mq.outbox.stub import groups_of

AHEAD_MAX = 20
"""So many stubs of the key are looked at: each may be waited for by other groups only."""


class AheadInOrder(NamedTuple):
    """The message that comes first. `groups`: those that wait for it; empty: its send does."""

    message_id: str
    groups: tuple[str, ...] = ()


def message_ahead(
    sources: ConsoleSources, history: MessageHistory, database: str, away: list[str]
) -> AheadInOrder | None:
    """Return the message behind which a message waits; None: it waits for none, or is settled.

    Args:
        sources: the databases.
        history: the rows of the message that waits.
        database: the one that has its stub; "": there is only one.
        away: gets a line for each database that cannot be asked.
    """
    stub = history.stub
    if stub is None or not stub["ordering_key"] or stub["status"] != StubStatus.UNCONFIRMED:
        return None
    begun = {row["consumer_group"] for row in history.logs}
    waiting = {*groups_of(stub["required_groups"])} - begun - _unordered(sources, stub["topic"])
    is_sent = stub["broker_name"] is not None
    if is_sent and (stub["deliver_time"] is not None or not waiting):
        return None
    place = database or next(iter(sources.databases))
    answer = ask(partial(_stubs_ahead, sources, place, stub))
    if answer.value is None:
        away.append(f"Database {place}, by ordering key: {answer.fault}")
    ahead = answer.value or []
    if not is_sent:
        return AheadInOrder(ahead[0].message_id) if ahead else None
    done = _done(sources, [each.message_id for each in ahead], away) if ahead else set()
    for each in ahead:
        left = {*groups_of(each.required_groups)} - {*groups_of(each.given_up_by)}
        held = sorted(group for group in left & waiting if (each.message_id, group) not in done)
        if held:
            return AheadInOrder(each.message_id, tuple(held))
    return None


def _unordered(sources: ConsoleSources, topic: str) -> set[str]:
    """Return the groups whose handler keeps no order."""
    consumers = sources.mq._declared.consumers
    return {each.group for each in consumers if each.topic == topic and not each.ordered}


def _stubs_ahead(sources: ConsoleSources, name: str, stub: Mapping[str, Any]) -> Sequence[Any]:
    """Return the oldest stubs of the key that are at the same place, and not settled."""
    with sources.reading(name) as (database, connection):
        column = database.stubs.c
        at = stub["broker_name"]
        is_unsent = column.broker_name.is_(None)
        wanted = (
            select(column.message_id, column.required_groups, column.given_up_by)
            .where(
                column.topic == stub["topic"],
                column.ordering_key == stub["ordering_key"],
                column.ordering_key != literal_column("''"),  # the condition of the index
                column.status == literal_column("0"),
                is_unsent if at is None else column.broker_name == at,
                column.seq < stub["seq"],
                not_(column.given_up),
                or_(is_unsent, column.deliver_time.is_(None)),
            )
            .order_by(column.broker_name, column.seq)
            .limit(AHEAD_MAX)
        )
        return connection.execute(wanted).all()


def _done(
    sources: ConsoleSources, message_ids: Sequence[str], away: list[str]
) -> set[tuple[str, str]]:
    """Return the messages that groups have consumed or let go, in all databases."""
    found: set[tuple[str, str]] = set()
    for name in sources.databases:
        answer = ask(partial(_done_in, sources, name, message_ids))
        if answer.value is None:
            away.append(f"Database {name}, by ordering key: {answer.fault}")
        found |= answer.value or set()
    return found


def _done_in(
    sources: ConsoleSources, name: str, message_ids: Sequence[str]
) -> set[tuple[str, str]]:
    with sources.reading(name) as (database, connection):
        log = database.logs.c
        wanted = select(log.message_id, log.consumer_group).where(
            log.message_id.in_(message_ids),
            or_(log.state == LogState.CONSUMED.value, log.note.is_not(None)),
        )
        return {(row.message_id, row.consumer_group) for row in connection.execute(wanted)}
