"""The store of a slave's broker, as the connection to its master sees it.

It receives runs of records. It says how far they are kept, and when there is room for more.
"""

import asyncio
from collections.abc import Callable, Sequence
from itertools import islice

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.store.copier import Copier
from reliable_mq.broker_core.store.truncation import begin_of_record, bytes_between
from reliable_mq.failover.epochs import EpochHistory
from reliable_mq.line_limit import limited_log
from reliable_mq.replication.copied_log import CopiedRun
from reliable_mq.replication.ha_status import MasterState
from reliable_mq.runtime.broker_role import BrokerRole
from reliable_mq.runtime.log_writer import LogWriter
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

_ROOM_SECONDS = 0.1
_MUCH = 64 * 1024 * 1024  # bytes of the master's log that a slave lacks while it copies
_UNSYNCED_MAX = 8 * 1024 * 1024  # bytes: some 30 ms of a disk


class CoreAsSlaveStore:
    """The store of a broker's core, for `HaSlave`."""

    def __init__(
        self, core: BrokerCore, writer: LogWriter, run_turn: Callable[[], None], role: BrokerRole
    ) -> None:
        self._state, self._store = core.state, core.state.store
        self._role = role
        self._log = core.state.store.log
        self._copier = Copier(core.state.store)
        state = core.state
        self._syncs = state.is_sync_flush
        self._reports_disk = state.is_sync_flush and not state.config.copies_early
        self._writer = writer
        self._run_turn = run_turn
        self._stored = asyncio.Event()  # more is
        self.segment_size = self._log.segment_size
        self.master = MasterState()  # of whoever sends the log
        self.history = EpochHistory()  # under a controller
        self.save_history: Callable[[], None] = lambda: None
        self.on_unknown_topic: Callable[[], None] = lambda: None  # has messages in the log

    def stored(self) -> None:
        """Note that more of the log is stored."""
        self._stored.set()

    @property
    def surely_acknowledged(self) -> int:
        """The offset up to which this broker has said SEND_OK as a master; -1: it is not known."""
        return self._role.surely_acknowledged

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self._log.end

    @property
    def kept(self) -> int:
        """The offset up to which the log is stored as `slaveFlush` and the flush type promise."""
        return self._log.durable if self._reports_disk else self._log.written

    @property
    def start(self) -> int:
        """Where the log begins."""
        return self._log.start

    @property
    def last_record(self) -> int:
        """Where the last record begins."""
        return self._store.last_record

    @property
    def acknowledged(self) -> int:
        """The offset up to which messages may have been acknowledged to clients."""
        return self._role.acknowledged(self._log.end)

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes of the log."""
        return bytes_between(self._log, offset, offset + size)

    def begin_of_record(self, offset: int) -> int:
        """Return the largest begin of a record that is not behind an offset."""
        return begin_of_record(self._log, offset)

    def verified(self, *, is_same: bool) -> None:
        """Note whether the log is the same as the master's: only then it may be served."""
        self._state.is_unverified = not is_same
        self._role.verified(is_same=is_same)

    def truncate(self, offset: int) -> None:
        """Have the log cut at an offset; this ends the broker, and it starts again."""
        self._role.truncate(offset)

    def begin_at(self, offset: int) -> None:
        """Let the empty log begin at an offset."""
        self._copier.begin_at(offset)

    @property
    def has_room(self) -> bool:
        """Whether everything that was copied is written, and most of it synced."""
        return not (self._writer.is_waiting_for_room or self._is_syncing_much)

    @property
    def _is_syncing_much(self) -> bool:
        """More at once would keep the disk from a master, or others, that share it."""
        return self._syncs and self._log.end - self._log.durable > _UNSYNCED_MAX

    def copy(self, runs: Sequence[CopiedRun]) -> None:
        """Append records and blanks, and write them."""
        lanes = self._store.appender.lanes
        known = len(lanes)
        for run in runs:
            self._copier.append(*run)
        new = len(lanes) - known
        if new > 0 and any(not self._knows(topic) for topic, _ in islice(reversed(lanes), new)):
            self.on_unknown_topic()
        self._store.is_copying = self.master.end - self._log.end > _MUCH
        self._run_turn()

    def left(self) -> None:
        """Note that no master sends its log now."""
        self._store.is_copying = False

    def _knows(self, topic: str) -> bool:
        return self._state.topics.get(topic) is not None

    async def room(self) -> None:
        """Return when there is room for more. If the disk is full, the log says so."""
        if self._writer.is_waiting_for_room:
            broker_events.COPY_WITHOUT_ROOM.log(
                log, master=self.master.address, log_offset=self._log.written
            )
        while self._writer.is_waiting_for_room:
            await asyncio.sleep(_ROOM_SECONDS)
        while self._is_syncing_much:
            self._stored.clear()
            await self._stored.wait()
