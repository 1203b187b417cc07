"""What a slave must be, seen at its disk: a prefix of its master's log, byte for byte.

It takes the model's place at the slave's machine. What it knows of the slave is what lies on the
slave's disk; what it knows of the master is the chronicle.
"""

from tests.simulation.asked import commands_of, whole
from tests.simulation.chronicle import Chronicle, parts_of
from tests.simulation.facts import Entry, Violation
from tests.simulation.unjudged import Unjudged
from tests.simulation.watched_disk import WatchedDisk

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.state import Turn
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import PullMessageHeader
from reliable_mq.wire.record import blank_size_at, decode_record


class Follower(Unjudged):
    """A slave's promises over all its lives.

    Args:
        chronicle: the master's log.
        disk: the slave's.
        is_sync_flush: whether the slave reports what is on the medium only.
    """

    def __init__(self, chronicle: Chronicle, disk: WatchedDisk, *, is_sync_flush: bool) -> None:
        self._chronicle = chronicle
        self._disk = disk
        self._is_sync_flush = is_sync_flush
        super().__init__()
        self._core: BrokerCore | None = None
        self._same = 0  # up to which the slave's log is the master's
        self._cuts = 0  # of the master's log that are known
        self._end_at_cut = 0  # where the slave's log ended then
        self.is_former = False  # it was a master: what it starts with may differ
        self._begin = 0  # of the slave's log
        self._must_survive = 0
        self._promised = 0  # of the log was acknowledged, because the slave has it
        self.kept = 0  # up to which the slave has had the master's log, as its flush type promises
        self._pulls: dict[tuple[int, int], PullMessageHeader] = {}
        self._read: set[tuple[int, int]] = set()  # pulls of this turn, read when they came

    # at the master

    def master_opened(self) -> None:
        """Note that the master's log may have lost its end."""
        end = self._chronicle.end
        self._same, self.kept = min(self._same, end), min(self.kept, end)
        self._note_cut()

    def _note_cut(self) -> None:
        """Note where the slave's log ends, if the master's has lost its end since."""
        if self._core is not None and self._chronicle.cuts != self._cuts:
            self._cuts, self._end_at_cut = self._chronicle.cuts, self._core.state.store.log.end

    def acknowledged(self, entry: Entry) -> None:
        """Note that a client was told that a slave has a message, too."""
        if entry.log_end > self.kept:
            raise Violation(
                f"{entry} is acknowledged up to {entry.log_end}, the slave has the log up to "
                f"{self.kept}"
            )
        self._promised = max(self._promised, entry.log_end)

    # at the slave

    def opened(self, core: BrokerCore) -> None:
        """Check what a slave has found after a crash."""
        self._core = core
        self.has_room = True
        end = core.state.store.log.end
        self._disk.log_opened(end)
        missing = self._chronicle.read(end, self._must_survive - end)
        if missing and blank_size_at(missing, 0) != len(missing):  # a blank comes again
            raise Violation(f"after a crash the slave ends at {end} of {self._must_survive}")
        if self._is_sync_flush and end < self._promised:
            raise Violation(f"after a crash the slave ends at {end}, promised is {self._promised}")
        self._promised = min(self._promised, end)  # less: it lost power, and syncs later only
        self._same = min(self._same, end)
        self._note_cut()
        if self.is_former:
            self.is_former, self._end_at_cut = False, end
        self._compare()

    def down(self, *, is_power_loss: bool) -> None:
        """Note that the slave is gone."""
        if self._core is not None:
            self._begin = self._core.state.store.log.start
        self._core = None
        self._pulls.clear()
        self._read.clear()
        self._must_survive = self._disk.log_synced if is_power_loss else self._disk.log_written
        if self._must_survive == self._begin:  # nothing of this log was synced, not even its name
            self._must_survive = 0
        if is_power_loss:
            self._disk.log_opened(self._must_survive)
            if not self._is_sync_flush:  # also if it dies again before it has opened
                self._promised = min(self._promised, self._must_survive)

    def emptied(self) -> None:
        """Note that the slave was given an empty disk."""
        self._same = self.kept = self._begin = self._must_survive = 0
        self._promised = self._end_at_cut = 0
        self._disk.log_opened(0)

    @property
    def same(self) -> int:
        """The offset up to which the slave's log is known to be the master's."""
        return self._same

    def was_cut(self, offset: int) -> None:
        """Note that the slave's log was cut, by the operator or because nobody was told of it."""
        self._same, self.kept = min(self._same, offset), min(self.kept, offset)
        self._must_survive = self._end_at_cut = offset
        self._promised = min(self._promised, offset)
        self._disk.log_opened(offset)

    @property
    def promised(self) -> int:
        """The offset up to which the slave's disk must have what was acknowledged."""
        return self._promised

    def compare_all(self) -> None:
        """Compare all that the slave has, once more."""
        self._same = 0
        self._compare()

    def stored(self, _end: int, _now_ms: int) -> None:
        """Compare what was copied with the master's log."""
        self._compare()

    def _compare(self) -> None:
        """Compare what is new at the slave; what the master has lost since is let be."""
        assert self._core is not None
        log, chronicle = self._core.state.store.log, self._chronicle
        for offset, data in parts_of(log, max(self._same, log.start)):
            if data != chronicle.read(offset, len(data)):
                if log.written > self._end_at_cut and not chronicle.is_of_old_life(offset, data):
                    raise Violation(f"the slave's log differs from the master's behind {offset}")
                return
            self._same = offset + len(data)
        kept = self._disk.log_synced if self._is_sync_flush else self._disk.log_written
        self.kept = max(self.kept, min(self._same, kept))

    # at its readers

    def received(self, connection: int, command: Command, _now_ms: int) -> None:
        """Note a pull."""
        if command.code == RequestCode.PULL_MESSAGE and not command.is_reply:
            header = PullMessageHeader.decode(command.ext_fields)
            self._pulls[connection, command.opaque] = header
            if self._serves:
                self._read.add((connection, command.opaque))

    def disconnected(self, connection: int) -> None:
        """Note that a reader is gone."""
        self._pulls = {key: pull for key, pull in self._pulls.items() if key[0] != connection}

    def turn(self, turn: Turn, _now_ms: int) -> None:
        """Check what the slave serves.

        A pull that finds something is read when it comes, and its answer leaves with its turn. In
        between the slave may learn that its log differs. It reads nothing from then on.
        """
        self.sent(whole(turn.replies))
        self._read.clear()

    def sent(self, replies: list[tuple[int, bytes]]) -> None:
        """Check what the slave serves."""
        for connection, reply in commands_of(replies):
            key = (connection, reply.opaque)
            pull = self._pulls.pop(key, None) if reply.is_reply else None
            if pull is not None:
                self._check_found(pull, reply.body, was_read=key in self._read)

    @property
    def _serves(self) -> bool:
        """Whether the slave does not know that its log differs."""
        return self._core is not None and not self._core.state.is_unverified

    def _check_found(self, pull: PullMessageHeader, body: bytes, *, was_read: bool) -> None:
        at, place = 0, (pull.topic, pull.queue_id)
        while at < len(body):
            record = decode_record(body, at, check_body=True)
            if (record.topic, record.queue_id) != place or record.queue_offset < pull.queue_offset:
                raise Violation(f"a slave answers {pull} with {record}")
            data = body[at : at + record.size]
            self._check_read(record.commit_log_offset, data, was_read=was_read)
            at += record.size

    def _check_read(self, offset: int, data: bytes, *, was_read: bool) -> None:
        if data == self._chronicle.read(offset, len(data)):
            return
        is_known = not (self._serves or was_read)
        if is_known or not self._chronicle.is_of_old_life(offset, data):
            raise Violation(f"the slave serves what its master does not have at {offset}: {data!r}")
