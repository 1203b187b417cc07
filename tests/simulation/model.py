"""What a broker must do, said a second time and as simply as possible.

The model sees what the broker sees (commands, time, how far the disk has come) and what it does
(turns), in order, and raises `Violation` at the first thing that breaks a promise:

    every request is answered once, in the turn in which it can be, as its kind demands
    every message that was taken is one record of the log, in the order of the requests
    queue offsets are gapless; nothing is acknowledged before it is as safe as the flush type says,
    and its topic, if that is new, is in its file
    a message shows in its queue when it is stored, and a pull returns exactly what is there
    a delayed message is delivered in order, never early, late or twice in one life, and never lost;
    a timed one in its millisecond, and once; a half ends once, and is unseen before; see `popped`
    after a crash the log is a prefix of what was written, with everything in it that was safe;
    tables say what their files said
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping

from tests.simulation.asked import Asked, Kind, commands_of, whole
from tests.simulation.copying import Copying
from tests.simulation.delays import Delays
from tests.simulation.disk_log import records_of, survivors
from tests.simulation.facts import Entry, Expected, Queue, Violation, entry_of, first_kept
from tests.simulation.halves import Halves
from tests.simulation.plan import Plan
from tests.simulation.popped import PoppedMessages
from tests.simulation.safe_log import SafeLog
from tests.simulation.tables import Tables
from tests.simulation.timers import TimedMessages
from tests.simulation.waiting import Waiting
from tests.simulation.watched_disk import WatchedDisk

from reliable_mq.broker_core.core import BrokerCore
from reliable_mq.broker_core.state import Turn
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command

_ROOM_FOUND_MS = 1_500  # so soon the broker finds that the disk has room again


class Model:
    """A broker's promises over all its lives.

    Args:
        kinds: what answers which request code.
        plan: whether an acknowledgement means durable, and how often the broker looks at the clock.
        disk: how far the log is written and synced.
    """

    def __init__(self, kinds: Mapping[int, Kind], plan: Plan, disk: WatchedDisk) -> None:
        self._kinds = kinds
        self._disk = disk
        self._is_sync_flush = plan.is_sync_flush
        self.copying = Copying(plan)
        self.on_opened: Callable[[BrokerCore], None] = lambda _core: None
        self.log: list[Entry] = []
        self._safe = SafeLog(disk, self.log, is_sync_flush=plan.is_sync_flush)
        self.queues: dict[tuple[str, int], Queue] = {}
        self.by_offset: dict[int, Entry] = {}
        self.tables = Tables()
        self.delays = Delays(self, plan.tick_ms, plan.queue_file_size)
        self.timers = TimedMessages(self, plan.tick_ms, plan.queue_file_size)
        self.halves = Halves(self, plan)
        self.popped = PoppedMessages(self, plan)
        self._of_time = (self.delays, self.timers, self.halves, self.popped)
        self.waiting = Waiting()
        self.has_room = True
        self.refusal: int | None = None  # the code with which sends are refused now
        self.has_rival = False  # whether another broker was promoted
        self.is_fenced = False  # the broker knows of it, and shows no message any more
        self._last: Asked
        self.start = 0  # where the log begins: what lies before has expired
        self.visible = 0  # so many entries of the log show in their queues
        self.visible_before: list[int] = []  # since the last turn: an answer may be as old
        self._acknowledged = 0
        self._expected: deque[tuple[Asked, Expected]] = deque()
        self._asked: dict[tuple[int, int], Asked] = {}
        self._fresh: list[Asked] = []
        self._unanswered: deque[Asked] = deque()  # in the order of the log
        self._ends: deque[tuple[int, int]] = deque()  # log end, number of entries: not stored yet
        self.answered_count = 0

    # what the broker is told

    def received(self, connection: int, command: Command, now_ms: int) -> None:
        """Note a request before the broker sees it."""
        if command.is_reply:
            return
        asked = Asked(
            connection, command, self._kinds[command.code], now_ms, self.visible, self.start
        )
        self._last = asked
        expected = asked.kind.expect(self, asked)
        asked.expected_count = len(expected)
        self._expected.extend((asked, record) for record in expected)
        if not command.is_oneway:
            self._asked[connection, command.opaque] = asked
            self._fresh.append(asked)
            if expected:
                self._unanswered.append(asked)

    def found_no_room(self) -> None:
        """Note that the last request found no room for the log's next file: it changes nothing."""
        asked = self._last
        asked.lacks_room = True
        self._expected = deque(pair for pair in self._expected if pair[0] is not asked)
        if asked.expected_count and isinstance(asked.facts, Entry):
            self.halves.reopen(asked.facts)

    def disconnected(self, connection: int) -> None:
        """Note that a connection is gone."""
        self._fresh = [asked for asked in self._fresh if asked.connection != connection]
        self.waiting.disconnected(connection)
        self.tables.disconnected(connection)

    def stored(self, end: int, now_ms: int) -> None:
        """Note that the broker was told how far the log is stored."""
        self.visible_before.append(self.visible)
        while self._ends and self._ends[0][0] <= end:
            _, count = self._ends.popleft()
            for entry in self.log[self.visible : count]:
                entry.shown_ms = now_ms
                self.delays.shown(entry, now_ms)
                self.queues[entry.topic, entry.queue_id].visible += 1
                self.waiting.shown(entry)
            self.visible = count

    def expired(self, start: int, *, may_go: bool) -> None:
        """Note where the log begins now."""
        if start != self.start and not may_go:
            raise Violation(f"the log begins at {start}, though the disk has room enough")
        self.start = start

    def is_gone(self, entry: Entry) -> bool:
        """Whether a record has expired."""
        return entry.log_offset < self.start

    def clock_was_set(self, change_ms: float) -> None:
        """Note that the clock jumped: what is due, and who is silent, begins anew."""
        self._disturbed()
        self.copying.clock_was_set(change_ms)
        self.delays.clock_was_set(change_ms)
        self.tables.producers.clear()

    def room(self, *, has_room: bool, refusal: int | None) -> None:
        """Note whether the broker found room for what it wrote, and whether it refuses sends."""
        self.refusal = refusal
        if has_room != self.has_room:
            self.has_room = has_room
            self._disturbed()

    def fenced(self, *, is_fenced: bool) -> None:
        """Note before a turn whether the broker believes that another one is the master."""
        if is_fenced and not self.has_rival:
            raise Violation("the broker is fenced, and nobody else was promoted")
        self.is_fenced = is_fenced

    def _disturbed(self) -> None:
        for each in self._of_time:
            each.disturbed()

    def ticked(self, now_ms: int) -> None:
        """Note that the broker looked at the clock."""
        self.waiting.ticked(now_ms)
        self.tables.ticked(now_ms)

    # what the broker does

    def turn(self, turn: Turn, now_ms: int) -> None:
        """Check all that the broker wants done."""
        self._check_turn(turn, now_ms)
        self.visible_before.clear()

    def _check_turn(self, turn: Turn, now_ms: int) -> None:
        answers = self._answers_in(whole(turn.replies))
        if turn.batch:
            for record in records_of(turn.batch):
                self._appended(entry_of(record), now_ms)
            self._ends.append((turn.batch.end, len(self.log)))
        if self._expected:
            asked, missing = self._expected[0]
            raise Violation(f"request {asked.command.code} was taken but not stored: {missing}")
        for asked, reply in answers:
            self._judge(asked, reply)
        self._nobody_is_forgotten(now_ms)

    def sent(self, replies: list[tuple[int, bytes]]) -> None:
        """Check answers that leave between two turns: they waited for a slave."""
        for asked, reply in self._answers_in(replies):
            self._judge(asked, reply)

    def _answers_in(self, replies: list[tuple[int, bytes]]) -> list[tuple[Asked, Command]]:
        commands = commands_of(replies)
        for _, command in commands:
            self._told(command)
        answers = [pair for pair in map(self._asked_for, commands) if pair]
        refused = [each for each, reply in answers if reply.code and not each.entries]
        if refused:
            self._expected = deque(p for p in self._expected if p[0] not in refused)
        return answers

    def _judge(self, asked: Asked, reply: Command) -> None:
        if asked.entries:
            self.copying.answered(self.log[asked.entries[-1]], reply)
        if asked.expected_count and not reply.code:
            self._acknowledge(asked)
        if not asked.lacks_room:
            asked.kind.check(self, asked, reply)
        elif reply.code not in (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR):
            raise Violation(f"there was no room, and the answer is {reply}")
        self.answered_count += 1

    def _told(self, command: Command) -> None:
        """Check a request of the broker's own."""
        if not command.is_reply and command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self.halves.asked(command)

    def _asked_for(self, answer: tuple[int, Command]) -> tuple[Asked, Command] | None:
        connection, reply = answer
        if not reply.is_reply:
            return None
        asked = self._asked.pop((connection, reply.opaque), None)
        if asked is None:
            raise Violation(f"connection {connection}: nobody waits for {reply}")
        asked.is_answered = True
        self.waiting.answered(asked)
        return asked, reply

    def _appended(self, entry: Entry, now_ms: int) -> None:
        queue = self.queues.setdefault((entry.topic, entry.queue_id), Queue())
        if entry.queue_offset != len(queue.entries):
            raise Violation(f"{entry} follows {len(queue.entries)} messages of its queue")
        if self.log and entry.log_offset < self.log[-1].log_end:
            raise Violation(f"{entry} begins before {self.log[-1]} ends")
        if self.log and entry.store_time_ms < self.log[-1].store_time_ms:
            raise Violation(f"{entry} was stored before {self.log[-1]}")
        if self._expected and self._expected[0][1].fits(entry):
            asked, _ = self._expected.popleft()
            asked.entries.append(len(self.log))
        elif not self._is_by_itself(entry, now_ms):
            wanted = self._expected[0][1] if self._expected else "nothing"
            raise Violation(f"{entry} was stored where {wanted} was expected")
        entry.number = len(self.log)
        if entry.due_ms:
            self.timers.appended(entry)
        self.halves.appended(entry)
        self.log.append(entry)
        queue.entries.append(entry)
        self.by_offset[entry.log_offset] = entry

    def _is_by_itself(self, entry: Entry, now_ms: int) -> bool:
        """Whether the broker has a reason of its own for a record."""
        return (
            self.popped.recorded(entry, now_ms)
            or self.delays.delivered(entry, now_ms)
            or self.timers.delivered(entry, now_ms)
            or self.halves.recorded(entry, now_ms)
        )

    @property
    def safe(self) -> int:
        """How many entries of the log are as safe as the flush type promises."""
        return self._safe.count

    def _acknowledge(self, asked: Asked) -> None:
        if asked.new_topic and asked.new_topic not in self.tables.saved_topics:
            raise Violation(f"a send is acknowledged, a crash would take {asked.new_topic}")
        last = max(asked.entries, default=-1)
        safe = self.safe
        if len(asked.entries) != asked.expected_count or last >= safe:
            raise Violation(
                f"{asked.command.code} is acknowledged: {len(asked.entries)} of "
                f"{asked.expected_count} messages in the log up to {last}, safe are {safe}"
            )
        may_wait = asked.new_topic or asked.kind.may_wait(self, asked)
        is_ordered = self._is_sync_flush and not may_wait
        if last < self._acknowledged - 1 and is_ordered:
            raise Violation(f"entry {last} is acknowledged after {self._acknowledged - 1}")
        self._acknowledged = max(self._acknowledged, last + 1)

    def _nobody_is_forgotten(self, now_ms: int) -> None:
        for asked in self._fresh:
            may_wait = asked.entries or asked.kind.may_wait(self, asked)
            if not asked.is_answered and not may_wait:
                raise Violation(f"request {asked.command.code} has no answer")
        self._fresh.clear()
        while self._unanswered and self._unanswered[0].is_answered:
            self._unanswered.popleft()
        for asked in self._unanswered:
            if asked.entries[-1] >= self.visible:
                break
            if asked.is_answered or asked.new_topic in self._unsaved_topics():
                continue
            if self.copying.may_wait(self.log[asked.entries[-1]], now_ms):
                continue
            # An answer that waited for its topic's file then waits with those of the next turn.
            if not asked.new_topic or self.visible == len(self.log):
                raise Violation(f"{asked.command.code} is stored and has no answer")
        self.waiting.nobody_is_forgotten()
        self.halves.nobody_is_unasked(now_ms)

    def _unsaved_topics(self) -> set[str]:
        return self.tables.topics.keys() - self.tables.saved_topics

    def nothing_is_late(self, now_ms: int) -> None:
        """Check what had to be done by the clock; nothing is without room on the disk."""
        if not self.has_room:
            if self._disk.has_had_room_ms > _ROOM_FOUND_MS:
                raise Violation("the disk has room, and sends are refused for want of it")
            return
        for each in self._of_time:
            each.nothing_is_late(now_ms)

    # lives

    def down(self, *, is_power_loss: bool) -> None:
        """Note that the broker is gone; so are the connections, and what waited on them."""
        self._safe.down(is_power_loss=is_power_loss)
        self._expected.clear()
        self._asked.clear()
        self._fresh.clear()
        self._unanswered.clear()
        self._ends.clear()
        self.waiting.clear()

    def opened(self, core: BrokerCore) -> None:
        """Check what a broker has found, and go on from there."""
        disk = self._disk
        self.has_room = True
        disk.log_opened(core.state.store.log.end)
        found = [entry_of(record) for record in survivors(core.state.store.log)]
        begin = core.state.store.log.start
        if begin > self.start:
            raise Violation(f"the log begins at {begin}, it was to begin at {self.start}")
        self.start = begin  # files that were to go may be there again
        first = first_kept(self.log, begin)
        for ours, theirs in zip(self.log[first:], found, strict=False):
            if not ours.is_same(theirs):
                raise Violation(f"after a crash the log has {theirs} instead of {ours}")
        count = first + len(found)
        self._safe.opened(count)
        self._cut(count)
        self.visible = count
        self.visible_before.clear()
        for (topic, queue_id), queue in self.queues.items():
            kept = core.state.store.queue(topic, queue_id)
            theirs_end = kept.end if kept else 0
            if theirs_end != queue.visible:
                raise Violation(f"{topic}/{queue_id} has {theirs_end}, must have {queue.visible}")
        self.on_opened(core)
        self.tables.opened(disk, self)
        self.delays.opened(disk)
        for each in (self.timers, self.popped):
            each.opened(core.state.timers.not_taken_up)
        self.halves.opened()

    def _cut(self, count: int) -> None:
        """Forget the entries of the log from `count` on, each after what it led to."""
        for entry in reversed(self.log[count:]):
            self.queues[entry.topic, entry.queue_id].entries.pop()
            del self.by_offset[entry.log_offset]
            for each in self._of_time:
                each.forget(entry)
        del self.log[count:]
        self._acknowledged = min(self._acknowledged, count)
        for queue in self.queues.values():
            queue.visible = len(queue.entries)

    def shown(self, topic: str, queue_id: int, visible: int) -> list[Entry]:
        """Return the messages of a queue that show when so many entries of the log do."""
        queue = self.queues.get((topic, queue_id)) or Queue()
        if visible < self.visible:
            return queue.entries[
                : bisect_left(queue.entries, visible, key=lambda entry: entry.number)
            ]
        return queue.entries[: queue.visible]

    def shown_count(self, topic: str, queue_id: int) -> int:
        """Return how many messages a queue shows."""
        return (self.queues.get((topic, queue_id)) or Queue()).visible

    def readable(self, log_offset: int) -> Entry | None:
        """Return the message that begins at a log offset, when a client may read it."""
        entry = self.by_offset.get(log_offset)
        if entry is None or entry.number >= self.visible or self.is_gone(entry):
            return None
        return entry
