"""Planted bugs of replication, and worlds with a slave in which they can show."""

from collections.abc import Callable, Mapping
from typing import Any

from reliable_mq.broker_core.answers import Answers
from reliable_mq.broker_core.master_tables import MasterTables
from reliable_mq.broker_core.replicated_answers import ReplicatedAnswers
from reliable_mq.runtime import replication
from reliable_mq.wire.codes import RequestCode

_Original = Any  # a function of the product, whatever it takes


def _release_what_is_stored(answers: ReplicatedAnswers, end: int) -> int:
    """Wait for the master's disk only."""
    return Answers.release(answers, end)


def _say_nothing_of_slaves(
    answers: ReplicatedAnswers, connection: int, end: int, frame: bytes
) -> None:
    """Forget that the turn of a reply was given up."""
    Answers.late(answers, connection, end, frame)


def _report_what_is_received(_kept: _Original) -> Any:
    return property(lambda store: store.end)


def _take_no_offsets(original: _Original) -> _Original:
    def take(tables: MasterTables, takes: Any, code: int, body: bytes, now_ms: int) -> None:
        if code != RequestCode.GET_ALL_CONSUMER_OFFSET:
            original(tables, takes, code, body, now_ms)

    return take


PAIR_CANARIES: Mapping[str, tuple[object, str, Callable[[_Original], _Original]]] = {
    "an answer before the slave has it": (
        ReplicatedAnswers,
        "release",
        lambda _: _release_what_is_stored,
    ),
    "a late answer says nothing of slaves": (
        ReplicatedAnswers,
        "late",
        lambda _: _say_nothing_of_slaves,
    ),
    "a report before the disk": (
        replication._CoreAsSlaveStore,
        "kept",
        _report_what_is_received,
    ),
    "offsets not taken over": (MasterTables, "_take", _take_no_offsets),
}

_PAIR = {
    "role": "SYNC_MASTER",
    "slave_timeout_ms": 3_000,
    "is_slave_sync_flush": True,
    "wire_ms": 5.0,
    "torn": 0.5,
    "slave_crash_every_ms": 0.0,
    "part_every_ms": 0.0,
}
PAIR_HABITATS: Mapping[str, Mapping[str, object]] = {
    "an answer before the slave has it": _PAIR,
    "a late answer says nothing of slaves": _PAIR,
    "a report before the disk": {**_PAIR, "wire_ms": 0.05, "disk_ms": 5.0},
    "offsets not taken over": {**_PAIR, "loses_master": False, "kinds_off": []},
}
