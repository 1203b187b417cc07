"""The stations of one message's life, each with its time, its process and its evidence. Pure.

Receives the rows and records of a message. Returns seven stations, in the order of the way.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from reliable_mq.database.attempt_list import attempts_of
from reliable_mq.database.row_values import LogState, StubStatus, is_skipped
from reliable_mq.escalate.timeline import MessageHistory
from reliable_mq.measuring.sql_last_run import LastRun
from reliable_mq.message import ReceivedMessage
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from reliable_mq.outbox.stub import groups_of
from reliable_mq.plain_text import times

_EPOCH = datetime.fromtimestamp(0, UTC)


class Reached(StrEnum):
    """Whether a message has reached a station."""

    DONE = "done"
    RUNNING = "running"
    FAILED = "failed"
    WAITS = "waits"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"


class Station(NamedTuple):
    """A station. `time` None: it is unknown. `process` "": it is unknown, or none is at it."""

    name: str
    reached: Reached
    evidence: tuple[str, ...]
    time: datetime | None = None
    process: str = ""


class GroupAttempt(NamedTuple):
    """An attempt of a group. `seconds` None: its begin or its end is unknown."""

    number: int
    ended: datetime | None
    outcome: str
    reason: str
    seconds: float | None


class GroupStory(NamedTuple):
    """What one consumer group did with the message. `is_running`: `process` handles it now."""

    group: str
    state: str
    place: str
    process: str
    is_running: bool
    attempts: tuple[GroupAttempt, ...]


def stations(
    history: MessageHistory, records: Sequence[ReceivedMessage], run: LastRun | None
) -> list[Station]:
    """Return the seven stations of a message.

    Args:
        history: its rows.
        records: what brokers keep of it.
        run: the last run of reconciliation; None: none is known.
    """
    stored = [each for each in records if not _is_copy(each)]
    return [
        _committed(history),
        _relayed(history, stored),
        _stored(history, stored),
        _delivered(history),
        _effect(history),
        _confirmed(history),
        _reconciled(history, run),
    ]


def _is_copy(record: ReceivedMessage) -> bool:
    return record.queue.topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def _committed(history: MessageHistory) -> Station:
    stub = history.stub
    if stub is None:
        return Station("Committed", Reached.UNKNOWN, ("No database that was asked has its stub.",))
    key = (f"key {stub['message_key']}",) if stub["message_key"] else ()
    return Station("Committed", Reached.DONE, (f"topic {stub['topic']}", *key), stub["create_date"])


def _relayed(history: MessageHistory, stored: Sequence[ReceivedMessage]) -> Station:
    stub = history.stub
    if stub is None:
        reached = Reached.DONE if stored else Reached.UNKNOWN
        return Station("Relayed", reached, ("It was not sent from a stub that is known.",))
    sent = f"sent {times(stub['count'])}" if stub["count"] else "no send is noted"
    process = stub["owner"] or ""
    if stub["broker_name"] is not None or stored or stub["status"] == StubStatus.CONFIRMED:
        return Station("Relayed", Reached.DONE, (sent,), None, process)
    if stub["status"] == StubStatus.VOIDED:
        return Station("Relayed", Reached.FAILED, (sent, "voided by a person"))
    if stub["resend_time"] is None:
        return Station("Relayed", Reached.FAILED, (sent, stub["note"] or "all sends are used up"))
    if process:
        return Station("Relayed", Reached.RUNNING, (sent,), None, process)
    return Station("Relayed", Reached.WAITS, (sent, "next send"), stub["resend_time"])


def _stored(history: MessageHistory, stored: Sequence[ReceivedMessage]) -> Station:
    if stored:
        first = min(stored, key=lambda each: each.store_time_ms)
        queue = first.queue
        place = f"{queue.broker_name}, queue {queue.queue_id}, offset {first.queue_offset}"
        more = (f"{len(stored)} copies",) if len(stored) > 1 else ()
        time = _EPOCH + timedelta(milliseconds=first.store_time_ms)
        return Station("Stored", Reached.DONE, (place, *more), time, queue.broker_name)
    stub = history.stub
    if stub is not None and stub["broker_name"] is not None:
        place = f"{stub['broker_name']}, queue {stub['queue_id']}, offset {stub['offset']}"
        said = "The stub says so; the broker was not asked, or has removed it."
        return Station("Stored", Reached.DONE, (place, said), None, stub["broker_name"])
    if history.logs:
        log = history.logs[0]
        place = f"{log['broker_name']}, queue {log['queue_id']}, offset {log['offset']}"
        return Station("Stored", Reached.DONE, (place,), None, log["broker_name"])
    return Station("Stored", Reached.WAITS, ("No broker that was asked has it.",))


def _groups(history: MessageHistory) -> list[str]:
    stub: Mapping[str, Any] = history.stub or {}
    named = groups_of(stub.get("required_groups", ""))
    return sorted({*named, *(log["consumer_group"] for log in history.logs)})


def _delivered(history: MessageHistory) -> Station:
    if not history.logs:
        wanted = _groups(history)
        text = f"waits for {', '.join(wanted)}" if wanted else "No group has to consume it."
        return Station("Delivered", Reached.WAITS if wanted else Reached.DONE, (text,))
    evidence = tuple(
        f"{log['consumer_group']}: {log['attempt']} attempt{'' if log['attempt'] == 1 else 's'}"
        for log in history.logs
    )
    running = [log["owner"] for log in history.logs if log["owner"] and not log["state"]]
    process = running[0] if running else ""
    first = min(log["create_date"] for log in history.logs)
    return Station(
        "Delivered", Reached.RUNNING if process else Reached.DONE, evidence, first, process
    )


def _effect(history: MessageHistory) -> Station:
    done = {
        log["consumer_group"]: log["consume_date"]
        for log in history.logs
        if log["state"] == LogState.CONSUMED
    }
    done |= {
        row["consumer_group"]: row["update_date"]
        for row in history.confirmations
        if row["state"] == LogState.CONSUMED and row["consumer_group"] not in done
    }
    wanted = _groups(history)
    missing = [each for each in wanted if each not in done]
    skipped = {log["consumer_group"]: log["note"] for log in history.logs if is_skipped(log)}
    evidence = tuple(f"{group}: {skipped.get(group) or 'committed'}" for group in sorted(done))
    if missing:
        stub: Mapping[str, Any] = history.stub or {}
        given_up = {*groups_of(stub.get("given_up_by", ""))} & {*missing}
        notes = {log["consumer_group"] for log in history.logs if log["note"]} & {*missing}
        reached = Reached.FAILED if given_up or notes else Reached.WAITS
        return Station("Effect", reached, (*evidence, f"missing: {', '.join(missing)}"))
    if not wanted:
        return Station("Effect", Reached.DONE, ("No group has to consume it.",))
    if skipped:
        return Station("Effect", Reached.SKIPPED, evidence)
    owners = sorted({log["owner"] for log in history.logs if log["state"] and log["owner"]})
    return Station("Effect", Reached.DONE, evidence, max(done.values()), ", ".join(owners))


def _confirmed(history: MessageHistory) -> Station:
    stub = history.stub
    if stub is None:
        return Station("Confirmed", Reached.UNKNOWN, ("Its stub is not known.",))
    if stub["status"] == StubStatus.CONFIRMED:
        return Station("Confirmed", Reached.DONE, ("The stub is settled.",), stub["update_date"])
    if stub["status"] == StubStatus.VOIDED:
        return Station("Confirmed", Reached.FAILED, ("Voided by a person.",), stub["update_date"])
    if stub["resend_time"] is None:
        return Station("Confirmed", Reached.FAILED, ("It waits for a person.",))
    return Station("Confirmed", Reached.WAITS, ("The stub is not settled.",))


def _reconciled(history: MessageHistory, run: LastRun | None) -> Station:
    if history.findings:
        newest = max(history.findings, key=lambda each: each["create_date"])
        is_last = run is None or newest["run_id"] == run.run_id
        evidence = (f"{newest['verdict']} in run {newest['run_id']}",)
        reached = Reached.FAILED if is_last else Reached.DONE
        more = () if is_last else (f"not found any more in run {run.run_id}",) if run else ()
        return Station("Reconciled", reached, (*evidence, *more), newest["create_date"])
    stub = history.stub
    if run is None:
        return Station("Reconciled", Reached.UNKNOWN, ("No run is known.",))
    if stub is None or stub["update_date"] > run.as_of or _is_outside(stub["create_date"], run):
        return Station("Reconciled", Reached.WAITS, ("The last run did not judge it.",))
    text = f"no finding in run {run.run_id}"
    return Station("Reconciled", Reached.DONE, (text,), run.finished, "reconcile")


def _is_outside(time: datetime, run: LastRun) -> bool:
    is_before = run.since is not None and time < run.since
    return is_before or (run.until is not None and time >= run.until)


def group_stories(history: MessageHistory) -> Iterator[GroupStory]:
    """Yield what each consumer group did, with all its attempts that are known."""
    for log in history.logs:
        attempts = [
            GroupAttempt(
                each.number,
                each.time,
                each.end.value if each.end else "ended",
                each.reason,
                _seconds(log["create_date"], each.time) if place == 0 else None,
            )
            for place, each in enumerate(attempts_of(log.get("failures")))
        ]
        if is_skipped(log):
            ended, why = log["consume_date"], log["note"] or ""
            attempts.append(GroupAttempt(log["attempt"], ended, "skipped", why, None))
        elif log["state"] == LogState.CONSUMED:
            seconds = _seconds(log["create_date"], log["consume_date"])
            known = seconds if not attempts and log["attempt"] == 1 else None
            ended = log["consume_date"]
            attempts.append(GroupAttempt(log["attempt"], ended, "effect committed", "", known))
        place = f"{log['broker_name']}, queue {log['queue_id']}, offset {log['offset']}"
        is_consumed = log["state"] == LogState.CONSUMED
        state = "CONSUMED" if is_consumed else "RECEIVED"
        yield GroupStory(
            *(log["consumer_group"], "SKIPPED" if is_skipped(log) else state, place),
            *(log["owner"] or "", bool(log["owner"]) and not is_consumed, tuple(attempts)),
        )


def _seconds(begin: datetime | None, end: datetime | None) -> float | None:
    """Return how long an attempt took; None: its row has one time, that of its transaction."""
    if begin is None or end is None or end - begin < timedelta(milliseconds=1):
        return None
    return (end - begin).total_seconds()
