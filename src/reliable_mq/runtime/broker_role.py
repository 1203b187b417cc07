"""The role of a running broker: its note on the disk, and what changes it.

It is told when the log was compared with the master's, and when it must be cut. A change of the
role, or a cut, ends the broker: it starts again with the other role.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from reliable_mq.broker_core.config import SLAVE
from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.replicated_answers import ReplicatedAnswers
from reliable_mq.broker_core.store.acknowledged import (
    AcknowledgedFile,
    acknowledged_until,
    forget_acknowledged,
    surely_acknowledged,
)
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.role_note import (
    RoleNote,
    load_role,
    save_role,
    settled_role,
)
from reliable_mq.broker_core.store.truncation import carry_out_truncation
from reliable_mq.errors import StoreError
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)


class RoleEnd(NamedTuple):
    """Why a broker ends by itself: an error; None: it starts again."""

    error: Exception | None = None


class BrokerRole:
    """The role of one broker.

    Attributes:
        note: what the disk has.
        ending: why the broker must end; None: it need not.
        on_end: called when it must.
    """

    def __init__(self) -> None:
        self._disk: Disk
        self._acknowledged: AcknowledgedFile | None = None
        self._before: RoleNote | None = None  # on the disk, when the role was decided
        self._is_plain = True  # without a note, and without `brokerRole`
        self.note = RoleNote()
        self.ending: RoleEnd | None = None
        self.on_end: Callable[[], None] = lambda: None

    @property
    def is_fenced(self) -> bool:
        """Whether the broker ends because another one is the master."""
        return self.ending is not None and self.ending.error is not None

    def raise_fenced(self) -> None:
        """Raise what has fenced the broker, if something has.

        Raises:
            FormerMaster: when another broker is the master.
        """
        if self.ending is not None and self.ending.error is not None:
            raise self.ending.error

    def settle(self, disk: Disk | None, properties: Mapping[str, str]) -> dict[str, str]:
        """Decide the role of this start; return the properties with it. Nothing is written yet.

        Args:
            disk: the store; None: there is none yet.
            properties: the settings.

        Raises:
            StoreError: when the note cannot be read.
        """
        before = self._before = load_role(disk) if disk is not None else None
        self.note, changes = settled_role(before, properties)
        self._is_plain = before is None and "brokerRole" not in properties
        return {**properties, **changes}

    def settle_as(
        self, disk: Disk, properties: Mapping[str, str], role: str, broker_id: int, epoch: int
    ) -> dict[str, str]:
        """Take the role that a controller has decided; see `settle`.

        A slave's log is compared again when another master was elected since.
        """
        before = self._before = load_role(disk)
        note = before or RoleNote()
        is_same = note.is_slave and role == SLAVE and note.epoch == epoch
        self.note = msgspec.structs.replace(
            note,
            role=role,
            broker_id=broker_id,
            epoch=epoch,
            is_verified=note.is_verified and is_same,
            truncate_to=note.truncate_to if role == SLAVE else -1,
        )
        self._is_plain = False
        return {**properties, "brokerRole": role, "brokerId": str(broker_id)}

    def prepare(self, disk: Disk, segment_size: int) -> None:
        """Write the note, and cut the log where it says, before the store is opened.

        Raises:
            StoreError: when the log cannot be cut there, or the note was changed meanwhile.
        """
        self._disk, before, note = disk, self._before, self.note
        if load_role(disk) != before:
            raise StoreError("another process has changed the role of this store; start again")
        if note != before and not self._is_plain:
            save_role(disk, note)
            if before is not None and (before.role, before.epoch) != (note.role, note.epoch):
                broker_events.ROLE_CHANGED.log(log, role=note.role, epoch=note.epoch)
        self.note = carry_out_truncation(self._disk, self.note, segment_size)

    def begin(self, core: BrokerCore) -> None:
        """Begin to note what is acknowledged, before the first message is taken."""
        state = core.state
        answers, end = state.answers, state.store.log.end
        if not state.topics.is_ours:  # another broker wrote the store since, and acknowledged
            forget_acknowledged(self._disk)
        if self.note.is_slave:
            state.is_unverified = end > 0 and not self.note.is_verified
            state.stand_in.knows_progress = self.note.is_verified
        elif isinstance(answers, ReplicatedAnswers):
            self._acknowledged = AcknowledgedFile(self._disk, end)
            answers.on_acknowledged = self._acknowledged.note
        else:
            forget_acknowledged(self._disk)

    def acknowledged(self, log_end: int) -> int:
        """Return the log offset up to which messages may have been acknowledged."""
        return acknowledged_until(self._disk, log_end)

    @property
    def surely_acknowledged(self) -> int:
        """The log offset up to which SEND_OK was said; -1: it is not known."""
        return surely_acknowledged(self._disk)

    def verified(self, *, is_same: bool) -> None:
        """Note whether the log was found to be the same as the master's."""
        if self.note.is_verified != is_same:
            self._change(is_verified=is_same)
        if is_same:  # what it has now is its master's, who may have acknowledged it
            forget_acknowledged(self._disk)

    def truncate(self, offset: int) -> None:
        """Have the log cut at an offset at the next start, which comes at once."""
        self._change(truncate_to=offset)
        self.end(RoleEnd())

    def learn_epoch(self, epoch: int) -> None:
        """Note the epoch of the master, if it is higher."""
        if epoch > self.note.epoch:
            self._change(epoch=epoch)

    def end(self, ending: RoleEnd) -> None:
        """End the broker."""
        if self.ending is None:
            self.ending = ending
            self.on_end()

    def _change(self, **changes: object) -> None:
        note = msgspec.structs.replace(self.note, **changes)
        save_role(self._disk, note)  # first: a change that is not on the disk is made again
        self.note = note

    def close(self) -> None:
        """Sync what was acknowledged, after the last reply."""
        if self._acknowledged is not None:
            self._acknowledged.close()
            self._acknowledged = None
