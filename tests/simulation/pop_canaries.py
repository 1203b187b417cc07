"""Planted bugs of consumption by the message, and worlds in which they can show."""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from reliable_mq.broker_core.delivery import coming_back
from reliable_mq.broker_core.delivery.ended_slots import EndedSlots
from reliable_mq.broker_core.delivery.pop_orders import PopOrders
from reliable_mq.broker_core.delivery.popped import Popped
from reliable_mq.broker_core.delivery.revival import DueCheckpoint, Revival
from reliable_mq.broker_core.delivery.settled_records import SettledRecords
from reliable_mq.broker_core.offsets import OffsetTable
from reliable_mq.broker_core.requests import pop, pop_ack
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import reply

_Original = Any  # a function of the product, whatever it takes


def _back_early(original: _Original) -> _Original:
    def due(revival: Revival, until_ms: int) -> DueCheckpoint | None:
        found: DueCheckpoint | None = original(revival, until_ms + 40)
        return found

    return due


def _hear_no_acks(original: _Original) -> _Original:
    def acknowledge(revival: Revival, key: Any, offsets: Iterable[int], position: int = -1) -> bool:
        some = [offset for offset in offsets if offset % 5]
        return bool(original(revival, key, some, position))

    return acknowledge


def _commit_all(original: _Original) -> _Original:
    def stored(popped: Popped, _end: int, offsets: OffsetTable) -> None:
        original(popped, sys.maxsize, offsets)

    return stored


def _pass_over_acks_only(original: _Original) -> _Original:
    def follow(settled: SettledRecords, checkpoint: Any, queue_offset: int, _place: int) -> None:
        original(settled, checkpoint, queue_offset, -1)

    return follow


def _send_at_once(state: Any, connection: int, command: Any, found: Any) -> None:
    ext, body = pop._ext(found), b"".join(found.bodies)
    answer = reply(command, 0, pop.FOUND, ext, body)
    state.answers.now(connection, encode_answer(answer))


POP_CANARIES: Mapping[str, tuple[object, str, Callable[[_Original], _Original]]] = {
    "an acknowledgement not stored": (
        pop_ack,
        "append_acks_together",
        lambda _: lambda *_given: None,
    ),
    "an acknowledgement not heard": (Revival, "acknowledge", _hear_no_acks),
    "acknowledgements passed over alone": (SettledRecords, "popped", _pass_over_acks_only),
    "a popped message too early": (Revival, "due", _back_early),
    "a popped message twice": (EndedSlots, "has_come_back", lambda _: lambda *_at: False),
    "a pop forgotten by a kill": (coming_back, "_raise_offsets", lambda _: lambda _state: None),
    "a pop committed before its checkpoint": (Popped, "stored", _commit_all),
    "a pop answered before its checkpoint": (pop, "_send", lambda _: _send_at_once),
    "a queue that is not blocked": (PopOrders, "blocks", lambda _: lambda *_at: False),
}


_POPPING = {
    "popper_count": 8,
    "client_count": 3,
    "topics": {"topic-0": 2},
    "think_ms": 20.0,
    "kinds_off": [],
    "segments_kept": 0,
    "full_every_ms": 0.0,
    "set_clock_every_ms": 0.0,
    "drop": 0.0,
}
_KILLS = {**_POPPING, "crash_every_ms": 500.0, "clean_stop": 0.0, "restart_after_ms": 10.0}
POP_HABITATS: Mapping[str, Mapping[str, object]] = {
    **dict.fromkeys(POP_CANARIES, _POPPING),
    "a popped message twice": {**_KILLS, "power_loss": 0.0},
    "a pop forgotten by a kill": {**_KILLS, "power_loss": 0.0},
    "a pop committed before its checkpoint": {
        **_KILLS,
        "is_sync_flush": False,
        "sync_interval_ms": 500.0,
        "power_loss": 1.0,
    },
}
