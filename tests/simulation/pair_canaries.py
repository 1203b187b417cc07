"""Planted bugs of replication, and worlds with a slave in which they can show."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from reliable_mq.broker_core.answers import Answers
from reliable_mq.broker_core.delivery.long_poll import WaitingPull
from reliable_mq.broker_core.master_tables import MasterTables
from reliable_mq.broker_core.replicated_answers import ReplicatedAnswers
from reliable_mq.broker_core.requests import at_slave, pull
from reliable_mq.broker_core.requests.refusal import of_unverified
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.acknowledged import AcknowledgedFile
from reliable_mq.broker_core.store.role_note import RoleNote
from reliable_mq.replication.ha_frames import Transfer
from reliable_mq.replication.log_comparison import LogComparison
from reliable_mq.runtime.fence import Fence
from reliable_mq.runtime.slave_store import CoreAsSlaveStore
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import reply
from reliable_mq.wire.long_frame import AnyFrame

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


def _find_no_difference(comparison: LogComparison, transfer: Transfer) -> Transfer | None:
    """Take what the slave has for what the master has."""
    common = max(0, comparison.end - transfer.offset)
    comparison.at += len(transfer.data)
    rest = transfer.data[common:]
    return Transfer(transfer.offset + common, rest) if rest else None


async def _see_nobody(_fence: Fence) -> list[tuple[str, int, int]]:
    return []


async def _never_look(_fence: Fence) -> None:
    """Believe to be the master for as long as the broker runs."""


def _keep_the_epoch(original: _Original) -> _Original:
    def promoted(note: RoleNote, role: str, epoch: int) -> Any:
        return msgspec.structs.replace(original(note, role, epoch), epoch=note.epoch)

    return promoted


def _refuse_as_fenced(_state: BrokerState, waiting: WaitingPull) -> tuple[AnyFrame, int]:
    """Refuse a pull that waited, although nobody else was promoted."""
    refused = of_unverified()
    return encode_answer(reply(waiting.command, refused.code, refused.remark)), 0


def _note_nothing(_file: AcknowledgedFile, _offset: int) -> None:
    """Acknowledge, and do not remember it."""


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
        CoreAsSlaveStore,
        "kept",
        _report_what_is_received,
    ),
    "a tail served that differs": (at_slave, "_if_verified", lambda _: lambda show: show),
    "a tail not compared": (LogComparison, "take", lambda _: _find_no_difference),
    "a promotion without a fence": (Fence, "_others", lambda _: _see_nobody),
    "a former master goes on": (Fence, "watch_forever", lambda _: _never_look),
    "a promotion without an epoch": (RoleNote, "promoted", _keep_the_epoch),
    "a good master refuses a pull that waits": (
        pull,
        "_answer_to_waiting",
        lambda _: _refuse_as_fenced,
    ),
    "an acknowledgement not noted": (AcknowledgedFile, "note", lambda _: _note_nothing),
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
_LOSSY_MASTER = {  # the master loses what the slave has: the slave is ahead, and differs
    **_PAIR,
    "is_sync_flush": False,
    "sync_interval_ms": 500.0,
    "wire_ms": 0.05,
    "master_power_loss": 1.0,
    "crash_every_ms": 500.0,
    "clean_stop": 0.0,
    "loses_master": False,
    "promotes": False,
}
_RIVALS = {**_PAIR, "loses_master": False, "promotes": True, "crash_every_ms": 0.0}
PAIR_HABITATS: Mapping[str, Mapping[str, object]] = {
    "an answer before the slave has it": _PAIR,
    "a late answer says nothing of slaves": _PAIR,
    "a report before the disk": {**_PAIR, "wire_ms": 0.05, "disk_ms": 5.0},
    "a tail served that differs": _LOSSY_MASTER,
    "a tail not compared": _LOSSY_MASTER,
    "a promotion without a fence": {**_RIVALS, "crash_every_ms": 500.0},
    "a former master goes on": _RIVALS,
    "a promotion without an epoch": _RIVALS,
    "a good master refuses a pull that waits": _PAIR,
    "an acknowledgement not noted": _RIVALS,
    "offsets not taken over": {
        **_PAIR,
        "loses_master": False,
        "promotes": False,
        "kinds_off": [],
    },
}
