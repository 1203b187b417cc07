"""Where a message stands now, in one sentence, and the command that helps. Pure.

Receives the rows and records of one message. Reads no clock and no database.
"""

import shlex
from collections.abc import Sequence
from typing import NamedTuple

from reliable_mq.command_words import typed
from reliable_mq.database.row_values import LogState, StubStatus, is_skipped
from reliable_mq.doctor.finding import Level
from reliable_mq.escalate.escalation import EscalationKind
from reliable_mq.escalate.timeline import MessageHistory
from reliable_mq.message import ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX
from reliable_mq.outbox.stub import groups_of
from reliable_mq.plain_text import times


class Standing(NamedTuple):
    """The state of a message: how bad, the sentence, and commands to paste."""

    level: Level
    text: str
    commands: tuple[str, ...] = ()


def standing(
    message_id: str,
    history: MessageHistory,
    records: Sequence[ReceivedMessage] = (),
    found_by: str = "",
    flying: Sequence[str] = (),
) -> Standing:
    """Return where a message stands.

    Args:
        message_id: the message.
        history: its rows in the databases.
        records: its records at the brokers.
        found_by: the options with which another command finds the databases, for hints.
        flying: the groups that have it in flight by the message.
    """
    settled = [row for row in history.logs if row["state"] == LogState.CONSUMED]
    skipped = sorted(row["consumer_group"] for row in settled if is_skipped(row))
    consumed = sorted(row["consumer_group"] for row in settled)
    given_up = sorted(_given_up(history, records) - set(consumed))
    stub = history.stub
    in_flight = f", in flight at {' and '.join(flying)}" if flying else ""
    if stub is not None and stub["status"] == StubStatus.VOIDED:
        return Standing(Level.OK, "voided by a person: it is not sent any more")
    if given_up:
        commands = tuple(
            typed(f"dlq retry {message_id} --group {shlex.quote(group)}", found_by)
            for group in given_up
        )
        who = " and ".join(given_up)
        return Standing(Level.ERROR, f"waits for a person: dead letter of {who}", commands)
    by_whom = _by_whom([each for each in consumed if each not in skipped], skipped)
    if stub is None:
        known = bool(consumed or records or history.logs)
        text = f"{by_whom}{in_flight}; its stub is in no database that was asked"
        return Standing(Level.OK if known else Level.WARNING, text)
    if stub["status"] == StubStatus.CONFIRMED:
        needed = groups_of(stub["required_groups"])
        text = f"settled: {by_whom}" if needed or consumed else "settled: the broker has stored it"
        return Standing(Level.OK, text)
    if stub["resend_time"] is None:
        retry = typed(f"stub retry {message_id}", found_by)
        tried = (
            "it was sent" if stub["broker_name"] else "no broker has stored it; a send was tried"
        )
        text = f"waits for a person: {tried} {times(stub['count'])}, {by_whom}"
        return Standing(Level.ERROR, text, (retry,))
    waits = sorted({*groups_of(stub["required_groups"])} - set(consumed))
    missing = f", still missing {' and '.join(waits)}" if waits and consumed else ""
    if stub["broker_name"] is None:
        return Standing(Level.WARNING, "committed, and not stored by a broker yet")
    return Standing(Level.WARNING, f"stored by the broker, {by_whom}{missing}{in_flight}")


def _by_whom(consumed: Sequence[str], skipped: Sequence[str]) -> str:
    parts = [f"consumed by {' and '.join(consumed)}"] if consumed else []
    if skipped:
        parts.append(f"skipped by a person for {' and '.join(skipped)}")
    return ", ".join(parts) or "consumed by nobody yet"


def _given_up(history: MessageHistory, records: Sequence[ReceivedMessage]) -> set[str]:
    """Return the groups that gave a message up, and got no retry since."""
    escalated = {
        row["consumer_group"]: row["close_date"] is None
        for row in history.escalations
        if row["kind"] == EscalationKind.DEAD_LETTER
    }
    found = {group for group, is_open in escalated.items() if is_open and group}
    for record in records:
        topic = record.queue.topic
        if topic.startswith(DEAD_LETTER_PREFIX):
            group = topic.removeprefix(DEAD_LETTER_PREFIX)
            if escalated.get(group, True):
                found.add(group)
    return found
