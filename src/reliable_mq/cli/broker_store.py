"""`reliable-mq broker promote|demote|truncate`: changes what a stopped broker's store is.

Receives the folder. Changes the note of its role, or the end of its log, and adds a line to the
audit of the store. The next start of the broker follows the note.
"""

import getpass
import time
from pathlib import Path
from typing import Any

import msgspec

from reliable_mq.broker_core.audit import AuditRecord
from reliable_mq.broker_core.config import ASYNC_MASTER, SYNC_MASTER, BrokerConfig
from reliable_mq.broker_core.store.commit_log import FOLDER
from reliable_mq.broker_core.store.role_note import RoleNote, load_role, save_role
from reliable_mq.broker_core.store.truncation import truncate
from reliable_mq.errors import StoreError, UsageError
from reliable_mq.failover.identity import PATH, load_identity
from reliable_mq.runtime.audit_file import AuditFile
from reliable_mq.runtime.file_disk import FileDisk

ACTIONS = ("promote", "demote", "truncate")


def change_store(
    action: str, store: Path, role: str = ASYNC_MASTER, number: int = 0, to: int = -1
) -> str:
    """Change a store that no broker uses; return the line that says it.

    Args:
        action: one of `ACTIONS`; see `check_action`.
        store: the folder.
        role: of a promoted store: ASYNC_MASTER or SYNC_MASTER.
        number: the `brokerId` of a demoted store.
        to: the log offset at which a log is truncated.

    Raises:
        StoreError: when a broker uses the store, or it cannot be changed so. It is as before then.
        UsageError: when an option is missing or has no effect.
    """
    _check_options(action, role, number, to)
    if not (store / FOLDER).is_dir():
        if (store / "config").is_dir():
            raise StoreError(
                f"store {store} has no message: nothing was copied to it. To serve it empty, start "
                "it with brokerRole=ASYNC_MASTER and brokerId=0"
            )
        raise StoreError(f"{store} is not a store directory")
    disk = FileDisk(store)
    try:
        before = load_role(disk) or RoleNote()
        _check_controller(action, disk)
        if action == "promote":
            after = before.promoted(role, before.epoch)
            save_role(disk, after)
        elif action == "demote":
            after = before.demoted(number)
            save_role(disk, after)
        else:
            if not before.is_slave:
                raise StoreError(
                    f"store {store} is a master's: nothing is removed from it; demote it first"
                )
            after = truncate(disk, before, to, _segment_size(store))
        _audit(store, action, before, after, {"log_offset": to} if to >= 0 else {})
    finally:
        disk.close()
    done = f"{store}: {action}d" if action.endswith("e") else f"{store}: {action}ed"
    tail = f", its log ends at {to}, the rest is in {store / 'surplus'}" if to >= 0 else ""
    return f"{done}: brokerRole={after.role} brokerId={after.broker_id} epoch={after.epoch}{tail}"


def check_action(action: str) -> None:
    """Raise for a word that is no action.

    Raises:
        UsageError: what to type instead.
    """
    if action not in ACTIONS:
        raise UsageError(
            f"{action}: the store is an option here: write --store {action}; or one of "
            f"{', '.join(ACTIONS)}"
        )


def _check_controller(action: str, disk: FileDisk) -> None:
    """Raise if a controller decides the role that an action would change."""
    if action != "truncate" and (known := load_identity(disk.read_text(PATH), PATH)) is not None:
        raise StoreError(
            f"a controller decides the role of this store (broker {known.broker_id} of "
            f"brokerName={known.name}, {PATH}): use `mqadmin electMaster`; or remove {PATH} if the "
            "store leaves the controller for ever"
        )


def _check_options(action: str, role: str, number: int, to: int) -> None:
    if (action == "demote") != (number > 0):
        raise UsageError("--id is the brokerId of a demoted store: a number above 0")
    if (action == "truncate") != (to >= 0):
        raise UsageError("--to is the log offset at which a log is truncated")
    if action == "promote" and role not in {ASYNC_MASTER, SYNC_MASTER}:
        raise UsageError(f"brokerRole={role}: use {ASYNC_MASTER} or {SYNC_MASTER}")


def _segment_size(store: Path) -> int:
    sizes = [file.stat().st_size for file in sorted((store / FOLDER).iterdir())]
    return max(sizes, default=0) or BrokerConfig().segment_size


def _audit(
    store: Path, action: str, before: RoleNote, after: RoleNote, more: dict[str, Any]
) -> None:
    record, now = AuditRecord(), time.time_ns() // 1_000_000
    record.note(
        now_ms=now,
        actor=getpass.getuser(),
        address="",
        action=f"{action.upper()}_STORE",
        on=more,
        seen=(msgspec.to_builtins(before), msgspec.to_builtins(after)),
        result="SUCCESS",
        is_done=True,
        hides=True,
    )
    file = AuditFile(store)
    file.write(record.take(), BrokerConfig(), now)
    file.close()
