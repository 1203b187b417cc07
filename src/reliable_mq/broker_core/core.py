"""The broker's core: commands and time in, turns out.

The shell calls `receive` for each command of a loop turn, then `take_turn`. It writes and syncs the
turn's batch, and reports this with `stored`, at once or later. `tick` does time-based work.
B1: a refused request changes nothing. S2: a reply leaves only when its record is stored as the
flush type promises.
"""

import math
from collections.abc import Callable
from functools import partial

from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.commits_at_slave import PATH as COMMITS_PATH
from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.delivery import schedule
from reliable_mq.broker_core.delivery.elsewhere import DeliveriesElsewhere
from reliable_mq.broker_core.delivery.followed_timers import VERSIONS_AHEAD
from reliable_mq.broker_core.delivery.order_lock import OrderLocks
from reliable_mq.broker_core.delivery.timed_elsewhere import TimedElsewhere
from reliable_mq.broker_core.due_work import DueWork
from reliable_mq.broker_core.filter.sql92 import Filter
from reliable_mq.broker_core.housekeeping import Housekeeping
from reliable_mq.broker_core.indexing import Indexing
from reliable_mq.broker_core.long_works import Steps, Work
from reliable_mq.broker_core.opening import made_state, open_state
from reliable_mq.broker_core.replicated_answers import ReplicatedAnswers
from reliable_mq.broker_core.requests import audited
from reliable_mq.broker_core.requests.audited import AUDITED
from reliable_mq.broker_core.requests.filtered_pull import judge_new
from reliable_mq.broker_core.requests.handlers import (
    Answered,
    answer_to_failed,
    not_supported,
    refuse_large,
)
from reliable_mq.broker_core.requests.known_sends import plain_form, send_known
from reliable_mq.broker_core.requests.pop_ack import try_to_record_acks
from reliable_mq.broker_core.requests.pop_wakes import PopWakes
from reliable_mq.broker_core.requests.pull import answer_waiting
from reliable_mq.broker_core.requests.query import forget_queries
from reliable_mq.broker_core.requests.sends_at_once import PlacedSends, place_alone
from reliable_mq.broker_core.requests.serving import Serving
from reliable_mq.broker_core.state import PeerConnection, Request, Turn
from reliable_mq.broker_core.store.commit_log import LogBatch
from reliable_mq.broker_core.store.disk import Disk
from reliable_mq.broker_core.store.lanes import Arrivals
from reliable_mq.broker_core.topic_brokers import Places
from reliable_mq.errors import InvariantBroken
from reliable_mq.limits import REQUEST_BODY_SIZE_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import ONE_WAY_FLAG, REPLY_FLAG, Command, decode_request
from reliable_mq.wire.frame import Frame, Known
from reliable_mq.wire.known_send import KnownSends, SendShapes
from reliable_mq.wire.signed_send import decode_signed_request

log = limited_log(__name__)

# Microseconds of work in one turn for replies to pulls that messages wake. Many pulls may wait for
# one message, and other requests must not wait for all of them.
_WAITING_COST_MAX = 2_000


class BrokerCore:
    """One broker over one disk."""

    def __init__(self, config: BrokerConfig, disk: Disk, *, process_id: int = 0) -> None:
        self._disk = disk
        self.state = made_state(config, disk, process_id)
        guard = self.state.guard
        self._serving = Serving(self.state)
        self.decode = decode_request if guard is None else decode_signed_request
        # Whether a send is stored when it is written, and needs no look at who sends it.
        is_local = not isinstance(self.state.answers, ReplicatedAnswers)
        self._stores_alone = is_local and guard is None and not self.state.is_sync_flush
        self.housekeeping = Housekeeping(self.state, disk)
        self._pop_wakes = PopWakes(self.state)
        self._arrived: dict[tuple[str, int], set[int]] = {}
        self._room = _WAITING_COST_MAX  # the rest of the budget until the turn ends
        self._indexing = Indexing(self.state, self._handle)
        self._due = DueWork(self.state, self.housekeeping, self._pop_wakes, self._indexing)

    def open(self, now_ms: int) -> None:
        """Recover the store and read the configuration files.

        Raises:
            StoreCorrupt: when a file has impossible content.
            ConfigurationError: when access control is on, and nobody could create users.
        """
        open_state(self.state, self._disk, now_ms)
        self._due.begin(now_ms)

    def fence(self) -> None:
        """Refuse what a master does, and show no message: another broker is the master."""
        self.state.is_unverified = True
        self._serving.fence()

    def isolate(self) -> None:
        """Serve nobody but slaves, until `go_online`."""
        self._serving.isolate()

    def go_online(self) -> None:
        """Serve everybody, if this broker was not fenced meanwhile."""
        self._serving.go_online()

    def deliver_elsewhere(self, now_ms: int) -> None:
        """Stand in for the master from now on; see `StandIn`."""
        state, config = self.state, self.state.config
        deliveries = None
        if config.delivers_elsewhere:
            state.schedule.begin_elsewhere()
            timed = TimedElsewhere(
                state.store,
                state.timers.followed,
                precision_ms=config.timer_precision_ms,
                recalls_within_topic=config.authorizes,
            )
            deliveries = DeliveriesElsewhere(state.store, state.schedule, timed)
        state.offsets.version.counter += VERSIONS_AHEAD
        state.offsets.version.timestamp = now_ms
        state.stand_in.begin(deliveries)

    def give_way(self) -> None:
        """Stand in no longer: the master is back, or may be. Its locks count from now on."""
        self.state.stand_in.end()
        self.state.locks = OrderLocks(self.state.config.lock_lifetime_ms)

    def decoder(self, host: bytes) -> tuple[Known[Command], Callable[[Frame], Command]]:
        """Return what recognises frames of a new connection from a packed host, and decodes others.

        A slave recognises none: it stores no sends.
        """
        if self.state.config.is_slave:
            return {}, self.decode
        shapes = SendShapes(partial(plain_form, self.state, host), self.decode)
        return shapes.known, shapes.decode

    def receive(self, connection: PeerConnection, command: Command, now_ms: int) -> bool:
        """Handle one command; its actions leave with the next turn.

        Return whether these are only plain sends, for which `take_sends` is enough.
        """
        if type(command) is KnownSends:
            return self._take_known(connection, command, now_ms)
        if command.flag & REPLY_FLAG:
            self._take_answer(connection, command)
        else:
            self._handle(Request(connection, command, now_ms))
        return False

    def _take_known(self, connection: PeerConnection, sends: KnownSends, now_ms: int) -> bool:
        """Store sends of a known shape; those that are more than plain are handled in general."""
        is_plain = self._serving.is_plain
        stored = send_known(self.state, connection, sends, now_ms) if is_plain else 0
        if stored < len(sends.bodies):
            for command in sends.in_general(self.decode)[stored:]:
                self._handle(Request(connection, command, now_ms))
        return stored == len(sends.bodies)

    def place_alone(
        self, connection: PeerConnection, command: Command, now_ms: int
    ) -> PlacedSends | None:
        """Return where the plain sends of a read are written; None: `receive` takes them.

        Nothing is changed. When it is written, before anything else, call `stored_alone`.
        """
        if self._stores_alone and self._serving.is_plain and type(command) is KnownSends:
            return place_alone(self.state, connection, command, now_ms)
        return None

    def stored_alone(
        self, sends: PlacedSends, began_ms: int, now_ms: int, answer: Callable[[list[Answer]], None]
    ) -> None:
        """Answer and dispatch sends that were written: `receive`, `take_sends` and `stored`.

        Args:
            sends: what was written.
            began_ms: when they came.
            now_ms: the time.
            answer: sends the replies, before the dispatch.

        Raises:
            OSError, StoreError: see `stored`.
        """
        state = self.state
        store, dispatched = state.store, sends.dispatched
        store.appender.add_written(sends.arrivals, dispatched)
        state.answers.released = dispatched.end
        if sends.answer is not None:
            state.statistics.put_time.add(sends.count, now_ms - began_ms)
            answer([sends.answer])
        store.dispatch_alone(sends.arrivals.values(), dispatched)
        if sends.note is not None and store.index is not None:
            offsets, form, keys = sends.note
            store.index.notes.add(offsets, dispatched.end, form, keys, dispatched.time_ms)
        if store.upkeep.due:
            store.upkeep.flush_due()

    def _handle(self, request: Request) -> None:
        """Have a request handled, and send the reply, unless it comes later."""
        state, command = self.state, request.command
        pending = audited.begin(state, request) if command.code in AUDITED else None
        handler = self._serving.handler_of(command.code)
        try:
            if handler is None:
                answer: Answered = not_supported(command)
            else:
                if len(command.body) > REQUEST_BODY_SIZE_MAX:
                    refuse_large(command)
                answer = handler(state, request)
        except Exception as error:  # noqa: BLE001 - it is told and logged there
            answer = answer_to_failed(state, request, error)
        if answer is None or isinstance(answer, Command):
            self._end(request, pending, answer)
        else:
            state.works.add(request.connection.id, self._in_steps(request, pending, answer))

    def _end(
        self, request: Request, pending: audited.PendingAct | None, answer: Command | None
    ) -> None:
        """Note the end of a request in the audit, and send the reply."""
        if pending is not None:
            audited.end(self.state, request, pending, answer)
        if answer is not None and not request.command.flag & ONE_WAY_FLAG:
            self.state.reply(request.connection.id, encode_answer(answer))

    def _in_steps(
        self, request: Request, pending: audited.PendingAct | None, steps: Steps[Command | None]
    ) -> Work:
        """Do the rest of a request that takes long."""
        try:
            answer = yield from steps
        except Exception as error:  # noqa: BLE001 - it is told and logged there
            answer = answer_to_failed(self.state, request, error)
        self._end(request, pending, answer)

    def _take_answer(self, connection: PeerConnection, command: Command) -> None:
        try:
            self.state.calls.answer(connection.id, command)
        except InvariantBroken:
            raise
        except Exception:  # noqa: BLE001 - it is logged
            broker_events.CLIENT_ANSWER_UNUSABLE.log(
                log, traceback_of=True, client=connection.address
            )

    def told_places(self, topic: str, places: Places, now_ms: int) -> None:
        """Take what a name server says of a topic, and answer who has waited for it."""
        for request in self.state.topic_brokers.told(topic, places, now_ms):
            self._handle(request)

    def disconnected(self, connection_id: int) -> None:
        """Remove a closed connection."""
        self.state.pulls.forget(connection_id)
        self.state.pops.forget(connection_id)
        self.state.notifications.forget(connection_id)
        self.state.calls.forget(connection_id)
        self.state.guests.forget(connection_id)
        forget_queries(self.state, connection_id)
        self.state.works.forget(connection_id)
        self.state.locks.disconnect(connection_id)
        for group in self.state.clients.disconnect(connection_id):
            self.state.notify_group(group)

    def begin_timer_checkpoint(self, now_ms: int) -> Callable[[], None] | None:
        """Return the job that saves the progress of the timers; None without progress.

        The job may run in another thread, between two writes of batches.
        """
        timers = self.state.timers
        if self.state.config.is_slave:
            return timers.followed.begin_checkpoint()
        return timers.begin_checkpoint(now_ms)

    def take_turn(self, began_ms: int = 0, now_ms: int = 0, work_us_max: float = math.inf) -> Turn:
        """Return the actions of this turn. `began_ms` is the arrival time of its first command.

        Requests that take long are worked on for `work_us_max` microseconds; default: to their end.
        """
        state = self.state
        if work_us_max and state.works.busy:
            state.works.run(work_us_max)
        if state.files.due:
            state.files.call_some()
        if state.pulls.ready:
            self._answer_woken()
        if state.pops.ready or state.notifications.ready:
            self._pop_wakes.answer_ready(now_ms)
        self._room = _WAITING_COST_MAX
        if state.popped.acks or state.popped.replies:
            try_to_record_acks(state)
        if state.halves.is_op_due:
            state.try_to_record_settled()
        files = state.files.take_texts(now_ms) if state.files.changed else {}
        log, statistics = state.store.log, state.statistics
        batch = state.store.take_batch() if log.pending else None
        turn = Turn(batch, state.answers.end_turn(log.end), files, state.registered_replies)
        if state.audit.lines:
            turn.audit = state.audit.take()
        state.registered_replies = []
        if batch or statistics.turn_pulls:
            statistics.note_turn_end(batch.end if batch else None, began_ms, now_ms)
        return turn

    def take_sends(self, began_ms: int = 0, now_ms: int = 0) -> LogBatch | None:
        """Return the batch of a turn in which only plain sends came; see `receive`.

        They add nothing else to a turn. What others have left waits for its own turn.
        """
        state = self.state
        self._room = _WAITING_COST_MAX
        batch = state.store.take_batch()
        if batch is not None:
            state.answers.end_sends(batch.end)
            state.statistics.note_turn_end(batch.end, began_ms, now_ms)
        return batch

    def stored(
        self,
        end: int,
        *,
        durable: bool,
        now_ms: int = 0,
        answer: Callable[[list[Answer]], None] | None = None,
        report: Callable[[], None] | None = None,
    ) -> bool:
        """Note that the log was written (and synced, if `durable`) up to `end`.

        Releases the replies that waited for this, then dispatches the visible records. No command
        is handled in between, so a client with a reply finds its message. While lines of the audit
        are not written, replies wait for the next turn: the reply to an audited request is one.

        Args:
            end: the log offset.
            durable: whether everything before it survives a crash.
            now_ms: the time.
            answer: sends the replies before the dispatch, so that they do not wait for it, and then
                those to the pulls that the dispatch woke. Default None: they leave with the next
                ones.
            report: tells a slave's master what is stored, before the dispatch for the same reason.

        Returns:
            Whether the next turn has more to do: waiting pulls or pops to answer, what they have
            stored, files, or lines of the audit.

        Raises:
            OSError, StoreError: when a queue cannot be written for a reason other than lack of
                room. Replies are released and the stored records are visible by then. The store
                must not be used any more.
        """
        state = self.state
        store, answers = state.store, state.answers
        if durable:
            store.log.mark_durable(end)
        else:
            store.log.mark_written(end)
        state.statistics.stored(end, answers.release(end), now_ms)
        if answer is not None and answers.ready and not state.audit.lines:
            answer(answers.take_ready())
        if report is not None:
            report()
        is_awaited = state.pulls.waiting or state.pops.waiting or state.notifications.waiting
        store.dispatch_up_to(end, self._note_arrival if is_awaited else None)
        if durable:
            self._note_durable(end)
        if self._arrived:
            self._wake_pulls(now_ms)
            if answer is not None and answers.ready and not state.audit.lines:
                answer(answers.take_ready())
        if store.upkeep.due:
            store.upkeep.flush_due()
        waiting = state.pulls.ready or state.pops.ready or state.notifications.ready
        return bool(waiting or store.log.pending or state.files.changed or state.audit.lines)

    def replicated(self, offset: int, *, has_slaves: bool) -> list[Answer]:
        """Note how far the slaves have the log that a synchronous master waits for.

        Return the replies that waited for this; none before lines of the audit are written: then
        they leave with the turn that is due. `has_slaves`: whether enough are connected.
        """
        answers = self.state.answers
        if isinstance(answers, ReplicatedAnswers):
            answers.acknowledge(offset, has_slaves=has_slaves)
        return [] if self.state.audit.lines else answers.take_ready()

    def _note_durable(self, end: int) -> None:
        """Tell those who wait for it that everything before log offset `end` is durable."""
        state = self.state
        if state.schedule.in_flight:
            state.schedule.stored(end)
        if state.halves.saving:
            state.halves.stored(end, state.offsets)
        if state.timers.ended.in_flight:
            state.timers.ended.stored(end)
        if state.popped.uncommitted:
            state.popped.stored(end, state.offsets)

    def saved(self, now_ms: int = 0, seconds: float = 0.0, *, is_flood: bool = False) -> None:
        """Note that the files of the last turn with files are on the medium.

        Many requests may have waited for this. The next turns release those that are left.

        Args:
            now_ms: the time.
            seconds: how long the write took, if it held others up; see `ConfigFiles.saved`.
            is_flood: see there.
        """
        self.state.files.saved(now_ms, seconds, is_flood=is_flood)

    def _note_arrival(self, arrivals: Arrivals) -> None:
        key = (arrivals.topic, arrivals.queue_id)
        tags_codes = self._arrived.get(key)
        if tags_codes is None:
            self._arrived[key] = arrivals.tags_codes
        else:
            tags_codes |= arrivals.tags_codes

    def _wake_pulls(self, now_ms: int) -> None:
        state = self.state
        for (topic, queue_id), tags in self._arrived.items():
            state.pulls.arrived(topic, queue_id, tags)
        if state.pops.waiting or state.notifications.waiting:
            self._pop_wakes.arrived(self._arrived)
            self._pop_wakes.answer_ready(now_ms)
        self._arrived.clear()
        self._answer_woken()

    def _answer_woken(self) -> None:
        """Answer pulls whose messages arrived; beyond the budget the next turn continues."""
        state = self.state
        while self._room > 0 and state.pulls.ready:
            pull = state.pulls.take_ready()
            if pull is None:
                return
            is_wanted = True
            if isinstance(pull.wanted, Filter):
                is_wanted, cost = judge_new(state, pull)
                self._room -= cost
            if is_wanted:
                self._room -= answer_waiting(state, pull)
            else:
                self._room -= pull.cost
                state.pulls.hold(pull)

    def tick(self, now_ms: int) -> None:
        """Do the work that is due: delays, long polls, expired clients, files."""
        self._due.tick(now_ms)

    @property
    def is_index_wanted(self) -> bool:
        """Whether indexing must run now; see `Indexing.is_wanted`."""
        return self._indexing.is_wanted

    def index_some(self, now_ms: int, *, is_short: bool = False) -> bool:
        """Add some more records to the index; see `Indexing.run_some`."""
        return self._indexing.run_some(now_ms, is_short=is_short)

    @property
    def created(self) -> int:
        """A count that grows with each change of a topic, and each queue's first message."""
        return self.state.store.appender.begun + self.state.topics.version.counter

    def close(self, now_ms: int = 0) -> None:
        """Save everything and close the store. All batches must be synced before."""
        state = self.state
        while self.index_some(now_ms):
            pass
        state.schedule.stored(state.store.log.end)
        if not state.config.is_slave:  # it has read no halves: its master's offsets count
            state.halves.save_when_stored(state.store.log.end)
            state.halves.stored(state.store.log.end, state.offsets)
        state.popped.stored(state.store.log.end, state.offsets)
        self._due.offsets.save_all()
        state.files.change(schedule.PATH, state.schedule.dump)
        if state.commits_at_slave.is_dirty:
            state.files.change(COMMITS_PATH, state.commits_at_slave.dump)
        self._due.save_counts()
        self.take_turn()
        for path, text in state.files.take_rest().items():
            self._disk.write_text(path, text)
        state.timers.close()
        state.store.close()
        self.housekeeping.finish()
