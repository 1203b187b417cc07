"""The broker's core: commands and time in, turns out.

The shell calls `receive` for each command of a loop turn, then `take_turn`. It writes and syncs the
turn's batch, and reports this with `stored`, at once or later. `tick` does time-based work.
B1: a refused request changes nothing. S2: a reply leaves only when its record is stored as the
flush type promises.
"""

import math
from collections.abc import Callable
from functools import partial

from reliable_mq.access.access_settings import begin_access
from reliable_mq.access.access_table import PATH as ACCESS_PATH
from reliable_mq.broker_core.answers import Answer
from reliable_mq.broker_core.commits_at_slave import PATH as COMMITS_PATH
from reliable_mq.broker_core.config import SYNC_FLUSH, BrokerConfig
from reliable_mq.broker_core.config_loading import load_tables, warn_of_missing
from reliable_mq.broker_core.creators import PATH as CREATORS_PATH
from reliable_mq.broker_core.delivery import pop_orders, popped, schedule, topic_counts
from reliable_mq.broker_core.delivery.coming_back import bring_back, settle_popped
from reliable_mq.broker_core.delivery.elsewhere import DeliveriesElsewhere
from reliable_mq.broker_core.delivery.followed_timers import VERSIONS_AHEAD
from reliable_mq.broker_core.delivery.half_check import HalfCheck
from reliable_mq.broker_core.delivery.order_lock import OrderLocks
from reliable_mq.broker_core.delivery.revival import Revival
from reliable_mq.broker_core.delivery.timed_elsewhere import TimedElsewhere
from reliable_mq.broker_core.delivery.timers import Timers
from reliable_mq.broker_core.filter.sql92 import Filter
from reliable_mq.broker_core.groups import PATH as GROUPS_PATH
from reliable_mq.broker_core.housekeeping import Housekeeping
from reliable_mq.broker_core.long_works import Steps, Work
from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.broker_core.offsets import PATH as OFFSETS_PATH
from reliable_mq.broker_core.replicated_answers import ReplicatedAnswers
from reliable_mq.broker_core.request_modes import PATH as MODES_PATH
from reliable_mq.broker_core.requests import audited
from reliable_mq.broker_core.requests.at_slave import Find, at_slave, before_online
from reliable_mq.broker_core.requests.audited import AUDITED
from reliable_mq.broker_core.requests.filtered_pull import judge_new
from reliable_mq.broker_core.requests.guarded import guarded
from reliable_mq.broker_core.requests.handlers import (
    HANDLERS,
    Answered,
    answer_to_failed,
    not_supported,
    refuse_large,
)
from reliable_mq.broker_core.requests.known_sends import (
    plain_form,
    send_known,
)
from reliable_mq.broker_core.requests.pop_ack import record_acks, try_to_record_acks
from reliable_mq.broker_core.requests.pop_wakes import PopWakes
from reliable_mq.broker_core.requests.pull import answer_waiting
from reliable_mq.broker_core.requests.query import forget_queries
from reliable_mq.broker_core.requests.sends_at_once import PlacedSends, place_alone
from reliable_mq.broker_core.state import BrokerState, PeerConnection, Request, Turn
from reliable_mq.broker_core.store import retention
from reliable_mq.broker_core.store.commit_log import LogBatch
from reliable_mq.broker_core.store.deletions import PATH as DELETIONS_PATH
from reliable_mq.broker_core.store.disk import Disk, is_out_of_room
from reliable_mq.broker_core.store.lanes import Arrivals
from reliable_mq.broker_core.store.message_index import IndexSizes
from reliable_mq.broker_core.store.message_store import ABORT_PATH, MessageStore
from reliable_mq.broker_core.store.progress import load_progress
from reliable_mq.broker_core.store.timer_store import TimerStore
from reliable_mq.broker_core.topic_brokers import Places
from reliable_mq.broker_core.topics import PATH as TOPICS_PATH
from reliable_mq.errors import InvariantBroken, StoreError
from reliable_mq.limits import REQUEST_BODY_SIZE_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import (
    ONE_WAY_FLAG,
    REPLY_FLAG,
    Command,
    decode_request,
    decode_signed_request,
)
from reliable_mq.wire.frame import Frame, Known
from reliable_mq.wire.known_send import KnownSends, SendShapes
from reliable_mq.wire.record import pack_host

log = limited_log(__name__)

_EXPIRY_INTERVAL_MS = 10_000
_ORDERS_INTERVAL_MS = 3600 * 1_000
_INDEX_PUT_OFF_MAX_MS = 2_000
# Budgets for replies to waiting pulls in microseconds of work: in one turn for those that messages
# wake, in one tick for those whose wait is over. Many pulls may wait for one message or one time,
# and other requests must not wait for all of them.
_WAITING_COST_MAX = 2_000
_DUE_COST_MAX = 5_000
_SAMPLE_INTERVAL_MS = 1_000


class BrokerCore:
    """One broker over one disk."""

    def __init__(self, config: BrokerConfig, disk: Disk, *, process_id: int = 0) -> None:
        self._disk = disk
        store = MessageStore(
            disk,
            segment_size=config.segment_size,
            queue_file_size=config.queue_file_size,
            store_host=pack_host(config.broker_ip, config.listen_port),
            delays_ms=config.delays_ms,
            process_id=process_id,
            is_sync_flush=config.flush_disk_type == SYNC_FLUSH,
            index_sizes=IndexSizes(config.index_slots, config.index_entries)
            if config.is_indexed
            else None,
        )
        self.state = BrokerState(config, store, self._timers(config, store))
        guard = self.state.guard
        handler_of: Find = HANDLERS.get if guard is None else guarded(guard)
        self._handler_of = at_slave(handler_of) if config.is_slave else handler_of
        self._unwatched = None if config.is_slave else handler_of
        self._online = self._isolated = self._handler_of
        self.decode = decode_request if guard is None else decode_signed_request
        # Whether a send is stored when it is written, and needs no look at who sends it.
        is_local = not isinstance(self.state.answers, ReplicatedAnswers)
        self._stores_alone = is_local and guard is None and not self.state.is_sync_flush
        self.housekeeping = Housekeeping(self.state, disk)
        self._half_check = HalfCheck()
        self._pop_wakes = PopWakes(self.state)
        self._arrived: dict[tuple[str, int], set[int]] = {}
        self._room = _WAITING_COST_MAX  # the rest of the budget until the turn ends
        self._is_encoding_offsets = False
        self._offsets_of = 0  # the checkpoints whose offsets are being encoded end here
        self._resets_of: dict[tuple[str, str, int], popped.ResetNote] = {}  # they have these
        self._indexed_ms = 0  # when the index had all messages
        self._is_index_late = False
        self._due_ms = dict.fromkeys(
            ("statistics", "delays", "offsets", "delay offsets", "clients", "halves", "orders"), 0
        )

    def _timers(self, config: BrokerConfig, store: MessageStore) -> Timers:
        files = TimerStore(
            self._disk,
            file_size=config.timer_file_size,
            precision_ms=config.timer_precision_ms,
            is_sync_flush=config.flush_disk_type == SYNC_FLUSH,
        )
        return Timers(
            store,
            files,
            precision_ms=config.timer_precision_ms,
            roll_slots=config.timer_roll_window,
            recalls_within_topic=config.authorizes,
            revival=Revival(config.broker_name),
        )

    def open(self, now_ms: int) -> None:
        """Recover the store and read the configuration files.

        Raises:
            StoreCorrupt: when a file has impossible content.
            ConfigurationError: when access control is on, and nobody could create users.
        """
        state, config = self.state, self.state.config
        loaders = {
            TOPICS_PATH: state.topics.load,
            GROUPS_PATH: state.groups.load,
            OFFSETS_PATH: state.offsets.load,
            DELETIONS_PATH: state.store.deletions.load,
            MODES_PATH: state.request_modes.load,
            schedule.PATH: state.schedule.load,
            topic_counts.TIMERS_PATH: state.timers.counts.load,
            retention.PATH: state.retention.load,
            ACCESS_PATH: state.access.load,
            CREATORS_PATH: state.creators.load,
            COMMITS_PATH: state.commits_at_slave.load,
            popped.PATH: state.popped.load,
            pop_orders.PATH: state.orders.load,
        }
        load_tables(self._disk, loaders)
        state.creators.settle()
        if config.authenticates and (made := begin_access(state.access, config.access)):
            self._save_now(ACCESS_PATH, state.access.dump())
            audited.note_first_users(state, made, now_ms)
        warn_of_missing(self._disk, TOPICS_PATH)
        state.topics.create_system_topics(
            config.broker_cluster_name,
            config.broker_name,
            auto_create=config.auto_create_topic,
            queues=config.default_topic_queues,
            levels=len(config.delays_ms),
            trace_topic=config.trace_topic if config.has_trace_topic else "",
        )
        state.topics.version.advance(now_ms)
        state.topics_changed()
        state.started_ms = self._indexed_ms = now_ms
        progress = load_progress(self._disk)
        deletions = state.store.deletions
        if not state.topics.is_ours:
            was_killed = self._disk.size_of(ABORT_PATH) >= 0
            deletions.note_others(self._disk, progress, was_killed=was_killed)
        state.store.open(progress)
        state.retention.begin(state.store.appender.last_time_ms)
        if deletions.settle(state.store.log.end):
            self._save_now(DELETIONS_PATH, deletions.dump())
        state.store.log.read_ahead(is_wanted=config.data_read_ahead)
        state.schedule.settle(state.store)
        if config.is_slave:
            state.commits_at_slave.is_wanted = True
            if state.popped.noted is not None or state.popped.resets:  # of its time as a master
                state.popped = popped.Popped()
                self._save_now(popped.PATH, state.popped.dump())
        else:
            state.timers.settle(now_ms)
            self._end_commits_at_slave()
        state.offsets.settle(state.store)
        state.settled(0, None, now_ms)
        if not config.is_slave:  # it would store an op record that its master has not sent yet
            state.halves.recover(state.store, state.offsets, progress.log_end if progress else 0)
            timed = state.store.queue(TIMER_TOPIC, 0)
            if state.popped.lower_note(timed.end if timed else 0):
                self._save_now(popped.PATH, state.popped.dump())
            settle_popped(state, now_ms)
        state.count_halves(now_ms)
        # Producers need time to reconnect before the first check-back.
        self._due_ms["halves"] = now_ms + config.transaction_check_interval_ms

    def _save_now(self, path: str, text: str) -> None:
        """Write a file at once, if there is room."""
        try:
            self._disk.write_text(path, text)
        except OSError as error:
            if not is_out_of_room(error):
                raise
            broker_events.CONFIG_NOT_WRITTEN.log(log, path=path)

    def fence(self) -> None:
        """Refuse what a master does, and show no message: another broker is the master."""
        self.state.is_unverified = True
        self._handler_of = at_slave(self._handler_of)

    def isolate(self) -> None:
        """Serve nobody but slaves, until `go_online`."""
        self._handler_of = before_online(self._handler_of)
        self._isolated = self._handler_of

    def go_online(self) -> None:
        """Serve everybody, if this broker was not fenced meanwhile."""
        if self._handler_of is self._isolated:
            self._handler_of = self._online

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
        if self._unwatched is None:
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
        is_open = self._handler_of is self._unwatched
        stored = send_known(self.state, connection, sends, now_ms) if is_open else 0
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
        if not (self._stores_alone and type(command) is KnownSends):
            return None
        if self._handler_of is not self._unwatched:
            return None
        return place_alone(self.state, connection, command, now_ms)

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
            sends.note_in(store.index.notes)
        if store.upkeep.due:
            store.upkeep.flush_due()

    def _handle(self, request: Request) -> None:
        """Have a request handled, and send the reply, unless it comes later."""
        state, command = self.state, request.command
        pending = audited.begin(state, request) if command.code in AUDITED else None
        handler = self._handler_of(command.code)
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

    def _answer_due(self, now_ms: int) -> None:
        """Answer pulls whose timeout is over; beyond the budget the next tick continues."""
        state, room = self.state, _DUE_COST_MAX
        while room > 0:
            pull = state.pulls.take_due(now_ms)
            if pull is None:
                return
            room -= answer_waiting(state, pull)

    def tick(self, now_ms: int) -> None:
        """Do the work that is due: delays, long polls, expired clients, files."""
        state, config = self.state, self.state.config
        state.note_pressure(now_ms)
        if isinstance(state.answers, ReplicatedAnswers):
            state.answers.expire(now_ms)
        statistics = state.statistics
        if not statistics.is_under_way and self._is_due("statistics", now_ms, _SAMPLE_INTERVAL_MS):
            statistics.begin_sampling(state.take_grown(), now_ms)
        statistics.run_some()
        self.housekeeping.run_some()
        self._answer_due(now_ms)
        self._pop_wakes.tick(now_ms)
        state.member_notices.tell_some()
        state.calls.expire(now_ms)
        if not config.is_slave:
            self._store_what_is_due(now_ms)
        self._note_index(now_ms)
        self._save_offsets(now_ms)
        is_due = self._is_due("delay offsets", now_ms, config.delay_offset_interval_ms)
        if is_due and state.schedule.is_dirty:
            state.files.change(schedule.PATH, state.schedule.dump)
        if is_due:
            self._save_counts()
        if self._is_due("orders", now_ms, _ORDERS_INTERVAL_MS):
            state.orders.expire(state.topics.by_name, state.groups.by_name, now_ms)
        if self._is_due("clients", now_ms, _EXPIRY_INTERVAL_MS):
            state.locks.expire(now_ms)
            for group in state.clients.expire(now_ms):
                state.notify_group(group)

    def _end_commits_at_slave(self) -> None:
        """A master's offsets are in its own table; those of its time as a slave are, too."""
        commits = self.state.commits_at_slave
        if commits.end():
            self.state.files.change(COMMITS_PATH, commits.dump)

    def _save_offsets(self, now_ms: int) -> None:
        """Save the offsets when it is due; a large table is encoded over several ticks."""
        offsets, commits = self.state.offsets, self.state.commits_at_slave
        is_due = self._is_due("offsets", now_ms, self.state.config.offset_interval_ms)
        if is_due and commits.is_dirty:
            self.state.files.change(COMMITS_PATH, commits.dump)
        if is_due and self.state.orders.is_dirty:
            self.state.files.change(pop_orders.PATH, self.state.orders.dump)
        if is_due and offsets.is_dirty and not self._is_encoding_offsets:
            offsets.begin_dump()
            self._is_encoding_offsets = True
            self._offsets_of = self._popped_up_to()
            self._resets_of = dict(self.state.popped.resets)
        if self._is_encoding_offsets and not offsets.encode_some():
            self._is_encoding_offsets = False
            self.state.files.change(OFFSETS_PATH, offsets.dump_encoded)
            if self.state.popped.is_changed:
                self._note_popped(self._offsets_of)

    def _popped_up_to(self) -> int:
        """Return the checkpoint from which a start must read, if the offsets are saved now."""
        queue = self.state.store.queue(TIMER_TOPIC, 0)
        return self.state.popped.begin_note(queue.end if queue else 0)

    def _note_popped(self, up_to: int) -> None:
        """Note where a start must read checkpoints, when the offsets are on the medium."""
        state = self.state
        state.popped.is_changed = False
        resets = self._resets_of

        def note() -> None:
            state.popped.saved(up_to, resets)
            state.files.change(popped.PATH, state.popped.dump)

        state.files.when_saved(note)

    def _store_what_is_due(self, now_ms: int) -> None:
        """Store the messages that the broker itself stores; skipped while the disk is full."""
        state = self.state
        is_due = self._is_due("delays", now_ms, schedule.CHECK_INTERVAL_MS)
        if self._is_due("halves", now_ms, state.config.transaction_check_interval_ms):
            self._half_check.begin(state)
        if state.pressure.is_disk_full:
            return
        try:
            if is_due:
                state.schedule.deliver_due(state.store, now_ms)
            if state.popped.acks:
                record_acks(state)  # the timers must know that they are there
            state.timers.run(now_ms)
            if len(state.timers.revival):
                bring_back(state, now_ms)
            if self._half_check.is_running:
                self._half_check.run_once(state, now_ms)
        except StoreError as error:
            if not is_out_of_room(error):
                raise
            broker_events.LOG_FILE_MISSING_ROOM.log(log, error=error)
            state.pressure.note_no_file(now_ms)

    @property
    def is_index_wanted(self) -> bool:
        """Whether indexing must run now: a query waits for it, or it was put off long enough.

        A slave that copies a whole log puts it off until it has the log.
        """
        state = self.state
        return bool(state.waiting_queries) or (self._is_index_late and not state.store.is_copying)

    @property
    def created(self) -> int:
        """A count that grows with each change of a topic, and each queue's first message."""
        return self.state.store.appender.begun + self.state.topics.version.counter

    def index_some(self, now_ms: int, *, is_short: bool = False) -> bool:
        """Add some more records to the index; return whether more is to be done.

        Fewer records if `is_short`: somebody sends single requests.

        When the index has reached the end of the log, one waiting query is answered each time: its
        answer may be large.
        """
        state = self.state
        was_stuck, state.is_index_stuck = state.is_index_stuck, False
        try:
            state.store.index_some(now_ms, is_short=is_short)
        except (OSError, StoreError) as error:
            state.is_index_stuck = True
            if not was_stuck:
                broker_events.INDEX_STUCK.log(log, error=error)
        self._note_index(now_ms)
        is_behind = not (state.store.is_indexed or state.is_index_stuck)
        if state.waiting_queries and not is_behind:
            self._handle(state.waiting_queries.popleft())
        return is_behind or bool(state.waiting_queries)

    def _note_index(self, now_ms: int) -> None:
        """Note whether the index has all messages, or was put off for too long."""
        if self.state.store.is_indexed or now_ms < self._indexed_ms:  # the clock went back
            self._indexed_ms = now_ms
        self._is_index_late = now_ms - self._indexed_ms >= _INDEX_PUT_OFF_MAX_MS

    def _save_counts(self) -> None:
        state = self.state
        for path, counts in (
            (topic_counts.TIMERS_PATH, state.timers.counts),
            (topic_counts.HALVES_PATH, state.half_counts),
        ):
            if counts.is_dirty:
                state.files.change(path, counts.dump)

    def _is_due(self, what: str, now_ms: int, interval_ms: int) -> bool:
        if now_ms < self._due_ms[what] <= now_ms + interval_ms:  # a later time: the clock went back
            return False
        self._due_ms[what] = now_ms + interval_ms
        return True

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
        if state.orders.is_dirty:
            state.files.change(pop_orders.PATH, state.orders.dump)
        state.files.change(OFFSETS_PATH, state.offsets.dump)
        if state.popped.is_changed or state.popped.noted:  # behind the file of the offsets
            state.popped.saved(self._popped_up_to(), dict(state.popped.resets))
            state.files.change(popped.PATH, state.popped.dump)
        state.files.change(schedule.PATH, state.schedule.dump)
        if state.commits_at_slave.is_dirty:
            state.files.change(COMMITS_PATH, state.commits_at_slave.dump)
        self._save_counts()
        self.take_turn()
        for path, text in state.files.take_rest().items():
            self._disk.write_text(path, text)
        state.timers.close()
        state.store.close()
        self.housekeeping.finish()
