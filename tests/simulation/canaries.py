"""Planted bugs: each must be found, or the simulation proves nothing.

A canary changes the product in memory, in one small way that a reviewer might miss.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from tests.simulation.kinds import ASKED
from tests.simulation.pair_canaries import PAIR_CANARIES, PAIR_HABITATS
from tests.simulation.plan import SEGMENT_SIZES
from tests.simulation.pop_canaries import POP_CANARIES, POP_HABITATS

from reliable_mq.broker_core.answers import Answers
from reliable_mq.broker_core.clients import ClientTable
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.delivery import ended_slots, half, timed_message
from reliable_mq.broker_core.delivery.ended_slots import EndedSlots
from reliable_mq.broker_core.delivery.half import PendingHalves
from reliable_mq.broker_core.delivery.half_check import HalfCheck
from reliable_mq.broker_core.delivery.long_poll import WaitingPulls
from reliable_mq.broker_core.delivery.order_lock import OrderLocks
from reliable_mq.broker_core.delivery.schedule import DelaySchedule
from reliable_mq.broker_core.delivery.timers import Timers
from reliable_mq.broker_core.offsets import OffsetTable
from reliable_mq.broker_core.pressure import Pressure
from reliable_mq.broker_core.requests import pull_reading, send
from reliable_mq.broker_core.state import BrokerState, Turn
from reliable_mq.broker_core.store.appender import Appender
from reliable_mq.broker_core.store.commit_log import CommitLog, LogBatch
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.store.lanes import Lane
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.testing.memory_disk import MemoryFile
from reliable_mq.wire.batch_body import decode_batch, encode_batch

_Original = Any  # a function of the product, whatever it takes


def _reply_before_sync(answers: Answers, connection: int, _end: int, frame: bytes) -> None:
    answers.now(connection, frame)


def _replies_before_sync(
    answers: Answers, connection: int, _end: int, frames: Iterable[bytes]
) -> None:
    for frame in frames:
        answers.now(connection, frame)


def _sync_nothing(_file: MemoryFile) -> None:
    """Say that a file is on the medium when it is not."""


def _offset_off_by_one(original: _Original) -> _Original:
    def append(appender: Appender, lane: Lane, *fields: Any) -> Any:
        place = original(appender, lane, *fields)
        if place.queue_offset and place.queue_offset % 7 == 0:
            lane.next += 1
        return place

    return append


def _known_offset_off_by_one(original: _Original) -> _Original:
    def append(appender: Appender, lanes: list[Lane], *fields: Any) -> Any:
        appended = original(appender, lanes, *fields)
        if appended and appended[1][-1] % 7 == 3:
            lanes[-1].next += 1
        return appended

    return append


def _offset_of_one_off_by_one(original: _Original) -> _Original:
    def append(appender: Appender, lane: Lane, *fields: Any) -> Any:
        appended = original(appender, lane, *fields)
        lane.next += appended[1] % 7 == 3
        return appended

    return append


def _dispatch_at_append(original: _Original) -> _Original:
    def take_turn(core: BrokerCore) -> Any:
        turn = original(core)
        if batch := getattr(turn, "batch", turn):  # a short turn is a batch
            core.state.store.log.mark_written(batch.end)
            core.state.store.dispatch_up_to(batch.end)
        return turn

    return take_turn


def _lose_a_delay(original: _Original) -> _Original:
    def deliver_level(schedule: DelaySchedule, store: Any, level: int, now_ms: int) -> Any:
        count = original(schedule, store, level, now_ms)
        if count > 1:
            schedule._next[level] += 1
        return count

    return deliver_level


def _delay_too_short(original: _Original) -> _Original:
    def is_early(schedule: DelaySchedule, level: int, due_ms: int, now_ms: int) -> Any:
        return original(schedule, level, due_ms - 30, now_ms)

    return is_early


def _save_delays_too_soon(original: _Original) -> _Original:
    """Count what is delivered as delivered for good before it is durable."""

    def dump(schedule: DelaySchedule) -> Any:
        schedule._saved.update(schedule._next)
        return original(schedule)

    return dump


def _no_settling(_table: OffsetTable, _store: MessageStore) -> None:
    """Keep committed offsets that lie behind what a crash left."""


def _commit_forgotten(original: _Original) -> _Original:
    def commit(table: OffsetTable, group: str, topic: str, queue_id: int, offset: int) -> None:
        if offset % 5:
            original(table, group, topic, queue_id, offset)

    return commit


def _wake_nobody_with_a_tag(original: _Original) -> _Original:
    def arrived(pulls: WaitingPulls, topic: str, queue_id: int, _tags_code: int) -> Any:
        return original(pulls, topic, queue_id, 0)

    return arrived


def _one_too_many(original: _Original) -> _Original:
    def more_units(queue: Any, header: Any, units: Any) -> Iterator[Any]:
        for number, unit in enumerate(original(queue, header, units)):
            if number != 3:
                yield unit

    return more_units


def _lock_of_two(original: _Original) -> _Original:
    def lock(locks: OrderLocks, group: str, client: str, queues: Any, now_ms: int, *at: Any) -> Any:
        for queue in queues:
            lock = locks._locks.get(group, {}).get(queue)
            if lock is not None and lock.expires_ms <= now_ms + 1_000:
                locks._free(group, queue)
        return original(locks, group, client, queues, now_ms, *at)

    return lock


def _trust_units(queue: ConsumeQueue, _log_offset: int) -> int:
    """Believe of a queue what it has, though nobody synced it."""
    return queue.end


def _half_a_batch(original: _Original) -> _Original:
    def append_batch(state: BrokerState, template: Any, body: bytes, now_ms: int) -> Any:
        items = decode_batch(body)
        if len(items) <= 3:
            return original(state, template, body, now_ms)
        place, offsets = original(state, template, encode_batch(items[:-1]), now_ms)
        return place, [*offsets, offsets[-1]]

    return append_batch


def _answer_twice(original: _Original) -> _Original:
    def release(answers: Answers, end: int) -> int:
        waiting = list(answers._withheld)[:1]
        count: int = original(answers, end)
        if waiting and waiting[0][0] <= end and end % 11 == 0:
            answers.now(*waiting[0][1][0])
        return count

    return release


def _end_twice(_halves: PendingHalves, _half: Any) -> bool:
    """Take every end of a transaction for the first one."""
    return False


def _check_too_early(original: _Original) -> _Original:
    def run_once(check: HalfCheck, state: BrokerState, now_ms: int) -> Any:
        return original(check, state, now_ms + 300)

    return run_once


def _sync_the_last_segment(original: _Original) -> _Original:
    """Of a batch that spans two segments, forget to sync the first."""

    def take(writer: LogWriter, turn: Turn) -> None:
        if turn.batch and len(turn.batch.writes) > 1:
            *others, last = turn.batch.writes
            CommitLog.write_batch(LogBatch(others, turn.batch.end))
            turn = msgspec.structs.replace(turn, batch=LogBatch([last], turn.batch.end))
        original(writer, turn)

    return take


def _no_file_for_ever(pressure: Pressure, _now_ms: int) -> None:
    pressure.note_room(has_room=False)


def _no_keys(_message: Any) -> tuple[str, str]:
    return "", ""


def _trim_too_far(original: _Original) -> _Original:
    def trim(queue: ConsumeQueue, log_start: int) -> Any:
        return original(queue, log_start and log_start + 2_000)

    return trim


def _at_once(_schedule: DelaySchedule, _level: int, _offset: int, _end: int, now_ms: int) -> int:
    return now_ms


def _timer_too_early(original: _Original) -> _Original:
    def deliver(timers: Timers, now_ms: int) -> Any:
        timers._caught_up_ms += 30
        return original(timers, now_ms + 30)

    return deliver


def _timers_noted_too_soon(original: _Original) -> _Original:
    def stored(slots: EndedSlots, _end: int) -> None:
        original(slots, sys.maxsize)

    return stored


CANARIES: Mapping[str, tuple[object, str, Callable[[_Original], _Original]]] = {
    "reply before sync": (Answers, "when_stored", lambda _: _reply_before_sync),
    "no sync": (MemoryFile, "sync", lambda _: _sync_nothing),
    "offset off by one": (Appender, "append_fields", _offset_off_by_one),
    "known offset off by one": (Appender, "append_known", _known_offset_off_by_one),
    "offset of one off by one": (Appender, "append_one", _offset_of_one_off_by_one),
    "replies together before sync": (Answers, "all_when_stored", lambda _: _replies_before_sync),
    "dispatch before durable": (BrokerCore, "take_turn", _dispatch_at_append),
    "sends dispatched before durable": (BrokerCore, "take_sends", _dispatch_at_append),
    "a lost delay": (DelaySchedule, "_deliver_level", _lose_a_delay),
    "a delay too short": (DelaySchedule, "_is_early", _delay_too_short),
    "delays saved too soon": (DelaySchedule, "dump", _save_delays_too_soon),
    "offsets behind the end": (OffsetTable, "settle", lambda _: _no_settling),
    "a commit forgotten": (OffsetTable, "commit", _commit_forgotten),
    "a waiting pull forgotten": (WaitingPulls, "arrived", _wake_nobody_with_a_tag),
    "a message skipped": (pull_reading, "_more_units", _one_too_many),
    "a lock of two": (OrderLocks, "lock", _lock_of_two),
    "unsynced units trusted": (ConsumeQueue, "index_of", lambda _: _trust_units),
    "a batch not whole": (send, "_append_batch", _half_a_batch),
    "a half ended twice": (PendingHalves, "is_settled", lambda _: _end_twice),
    "a half asked for too early": (HalfCheck, "run_once", _check_too_early),
    "no producer asked": (ClientTable, "next_producer", lambda _: lambda *_at: None),
    "a late end heard twice": (half, "_settled_late", lambda _: lambda _store: ()),
    "a segment not synced": (LogWriter, "write_turn", _sync_the_last_segment),
    "no room for ever": (Pressure, "note_no_file", lambda _: _no_file_for_ever),
    "no delay when the clock goes back": (DelaySchedule, "_due_again", lambda _: _at_once),
    "a repeated end too early": (BrokerState, "settled_before", lambda _: BrokerState.reply),
    "a timer too early": (Timers, "_deliver", _timer_too_early),
    "a timer twice": (ended_slots, "deliveries_since", lambda _: lambda *_at: (Counter(), 0)),
    "timers noted too soon": (EndedSlots, "stored", _timers_noted_too_soon),
    "a recall not heard": (timed_message.TimedMessage, "own_keys", lambda _: property(_no_keys)),
    "a reset not told": (OffsetTable, "take_reset", lambda _: lambda *_at: None),
    "a queue trimmed too far": (ConsumeQueue, "trim", _trim_too_far),
    "an answer twice": (Answers, "release", _answer_twice),
    **PAIR_CANARIES,
    **POP_CANARIES,
}


def _all_but(*kinds: str) -> list[str]:
    return sorted({*ASKED} - {*kinds})


# Worlds in which a bug can show at all, where that takes more than luck.
_LOSSY = {
    "is_sync_flush": False,
    "sync_interval_ms": 500.0,
    "power_loss": 1.0,
    "crash_every_ms": 1_000.0,
    "kinds_off": [],
}
HABITATS: Mapping[str, Mapping[str, object]] = {
    "offsets behind the end": {
        **_LOSSY,
        "kinds_off": ["delayed", "batch", "wrong", "send back", "search", "view", "lock"],
    },
    "delays saved too soon": {
        **_LOSSY,
        "duration_ms": 8_000.0,
        "crash_every_ms": 2_000.0,
        "checkpoint_ms": 10_000.0,
    },
    "unsynced units trusted": {  # units are written with a tick: there must be many of them
        "is_sync_flush": False,
        "sync_interval_ms": 50.0,
        "tick_ms": 20.0,
        "think_ms": 5.0,
        "client_count": 8,
        "power_loss": 1.0,
        "clean_stop": 0.0,
        "crash_every_ms": 500.0,
    },
    "timers noted too soon": {  # a slow disk: between a note and what it speaks of is time to crash
        "is_sync_flush": True,
        "duration_ms": 8_000.0,
        "tick_ms": 100.0,
        "disk_ms": 100.0,
        "queue_file_size": 20_000,
        "power_loss": 1.0,
        "clean_stop": 0.0,
        "crash_every_ms": 1_500.0,
        "restart_after_ms": 10.0,
        "checkpoint_ms": 10_000.0,
        "kinds_off": _all_but("send", "timed"),
    },
    "a queue trimmed too far": {
        "segments_kept": 2,
        "segment_size": SEGMENT_SIZES[0],
        "big_bodies": 0.5,
        "clean_ms": 200,
        "kinds_off": _all_but("send", "pull"),
    },
    "a recall not heard": {"kinds_off": _all_but("timed", "recall")},
    "a reset not told": {"kinds_off": []},
    "a half asked for too early": {"half_check_ms": 300, "kinds_off": []},
    "no producer asked": {"half_check_ms": 300, "kinds_off": []},
    "a late end heard twice": {
        "duration_ms": 8_000.0,
        "half_check_ms": 300,
        "half_checks_max": 1,
        "crash_every_ms": 1_000.0,
        "power_loss": 0.0,
        "kinds_off": _all_but("half", "end"),
    },
    "a segment not synced": {
        "is_sync_flush": True,
        "segment_size": SEGMENT_SIZES[0],
        "big_bodies": 0.5,
        "power_loss": 1.0,
        "crash_every_ms": 500.0,
        "disk_ms": 5.0,
        "kinds_off": _all_but("send", "batch"),
    },
    "no room for ever": {
        "segment_size": SEGMENT_SIZES[0],
        "big_bodies": 1.0,
        "think_ms": 20.0,
        "checkpoint_ms": 100_000.0,
        "full_every_ms": 200.0,
        "full_for_ms": 100.0,
        "crash_every_ms": 0.0,
        "kinds_off": _all_but("batch"),
    },
    "no delay when the clock goes back": {
        "set_clock_every_ms": 1_000.0,
        "set_clock_ms": 20_000.0,
        "kinds_off": _all_but("send", "delayed"),
    },
    "a repeated end too early": {"duplicate": 0.5, "disk_ms": 5.0, "kinds_off": []},
    **PAIR_HABITATS,
    **POP_HABITATS,
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Plant a bug for as long as the context lasts."""
    owner, attribute, change = CANARIES[name]
    original = getattr(owner, attribute)
    is_own = attribute in vars(owner)
    assert is_own, f"{owner} has no {attribute} of its own any more"
    raw = vars(owner)[attribute]
    setattr(owner, attribute, change(original))
    try:
        yield
    finally:
        setattr(owner, attribute, raw)
