"""The role of a store: master or slave, and the epoch of its promotion.

The file is written when a broker starts in another role, and by `reliable-mq broker promote` and
`demote`. Each promotion raises the epoch. Of two masters with one name, the one with the lower
epoch is the former master, and it takes no messages.

The last explicit act decides the role. If `brokerRole` is the same as at the last start, the role
of the note counts: somebody has promoted or demoted this store since. If `brokerRole` has changed,
the settings count.
"""

from collections.abc import Mapping

import msgspec

from reliable_mq.broker_core.config import ASYNC_MASTER, SLAVE
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.decodable import decodable
from reliable_mq.errors import StoreError

PATH = "config/brokerRole.json"


@decodable
class RoleNote(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a store knows of its role.

    Attributes:
        epoch: of the last promotion of this broker name, as far as this store knows.
        role: what the store is: a value of `brokerRole`.
        broker_id: its `brokerId` in this role.
        asked_role: `brokerRole` in the settings of the last start; "": it was not set.
        is_verified: whether the log was compared with a master's since the store is a slave's.
        truncate_to: the log offset at which the log must be cut before it is opened; -1: none.
    """

    epoch: int = 0
    role: str = ASYNC_MASTER
    broker_id: int = 0
    asked_role: str = ""
    is_verified: bool = False
    truncate_to: int = -1

    @property
    def is_slave(self) -> bool:
        """Whether the store is a slave's."""
        return self.role == SLAVE

    def promoted(self, role: str, epoch: int) -> "RoleNote":
        """Return the note of this store as a master, with a higher epoch than any known one."""
        return msgspec.structs.replace(
            self,
            role=role,
            broker_id=0,
            epoch=max(self.epoch, epoch) + 1,
            is_verified=False,
            truncate_to=-1,  # as the master it keeps what it has
        )

    def demoted(self, broker_id: int) -> "RoleNote":
        """Return the note of this store as a slave; its log must be compared first."""
        return msgspec.structs.replace(self, role=SLAVE, broker_id=broker_id, is_verified=False)


def load_role(disk: Disk) -> RoleNote | None:
    """Return the note of a store; None without one.

    Raises:
        StoreError: when it cannot be read. A broker that does not know its epoch is not fenced.
    """
    text = disk.read_text(PATH)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=RoleNote)
    except msgspec.MsgspecError as error:
        raise StoreError(
            f"{PATH}: {error}; restore it from a copy, or remove it if no other broker has this "
            "broker's name"
        ) from error


def save_role(disk: Disk, note: RoleNote) -> None:
    """Write the note durably."""
    disk.write_text(PATH, msgspec.json.encode(note).decode())


def settled_role(
    before: RoleNote | None, properties: Mapping[str, str]
) -> tuple[RoleNote, dict[str, str]]:
    """Return the note of a start, and the properties that it changes.

    Args:
        before: the note of the store.
        properties: the settings.
    """
    asked = properties.get("brokerRole", "")
    wanted, number = asked or ASYNC_MASTER, properties.get("brokerId", "0")
    own_id = int(number) if number.isdecimal() else 0
    if before is None:
        return RoleNote(role=wanted, broker_id=own_id, asked_role=asked), {}
    if asked == before.asked_role and wanted != before.role:
        return before, {"brokerRole": before.role, "brokerId": str(before.broker_id)}
    note = msgspec.structs.replace(before, asked_role=asked, broker_id=own_id)
    if wanted == SLAVE and not before.is_slave:
        note = note.demoted(own_id)
    elif wanted != SLAVE and before.is_slave:
        note = note.promoted(wanted, note.epoch)
    return msgspec.structs.replace(note, role=wanted), {}
