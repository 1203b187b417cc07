"""The state of a broker, and the actions that it collects for the end of a turn.

Receives changes from the request handlers. Returns a `Turn`. Performs no I/O itself.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgspec

from reliable_mq.access.access_table import AccessTable
from reliable_mq.access.guard import Guard
from reliable_mq.broker_core.answers import Answer, SendReply
from reliable_mq.broker_core.audit import AuditRecord
from reliable_mq.broker_core.broker_quotas import BrokerQuotas
from reliable_mq.broker_core.clients import ClientTable
from reliable_mq.broker_core.commits_at_slave import CommitsAtSlave
from reliable_mq.broker_core.config import SYNC_FLUSH, BrokerConfig
from reliable_mq.broker_core.config_files import ConfigFiles
from reliable_mq.broker_core.creators import Creators
from reliable_mq.broker_core.delivery.client_calls import ClientCalls
from reliable_mq.broker_core.delivery.half import PendingHalves
from reliable_mq.broker_core.delivery.long_poll import WaitingPulls
from reliable_mq.broker_core.delivery.order_lock import OrderLocks
from reliable_mq.broker_core.delivery.pop_orders import PopOrders
from reliable_mq.broker_core.delivery.popped import Popped
from reliable_mq.broker_core.delivery.schedule import DelaySchedule
from reliable_mq.broker_core.delivery.timers import Timers
from reliable_mq.broker_core.delivery.topic_counts import OF_HALVES, TopicCounts
from reliable_mq.broker_core.delivery.waiting_pops import WaitingPops
from reliable_mq.broker_core.groups import PATH as GROUPS_PATH
from reliable_mq.broker_core.groups import GroupConfig, GroupTable
from reliable_mq.broker_core.guests import Guests
from reliable_mq.broker_core.long_works import LongWorks
from reliable_mq.broker_core.member_notices import MemberNotices
from reliable_mq.broker_core.names import DEFAULT_TOPIC, OP_TOPIC, SETTLED_TAG
from reliable_mq.broker_core.offsets import OffsetTable
from reliable_mq.broker_core.pressure import Pressure
from reliable_mq.broker_core.replicated_answers import answers_of
from reliable_mq.broker_core.request_modes import RequestModes
from reliable_mq.broker_core.stand_in import StandIn
from reliable_mq.broker_core.statistics import Statistics
from reliable_mq.broker_core.store.appender import AppendResult, StoredMessage
from reliable_mq.broker_core.store.commit_log import LogBatch
from reliable_mq.broker_core.store.consume_queue import ConsumeQueue
from reliable_mq.broker_core.store.disk import FileText, is_out_of_room
from reliable_mq.broker_core.store.message_store import MessageStore
from reliable_mq.broker_core.store.retention import LogRetention
from reliable_mq.broker_core.topic_brokers import TopicBrokers
from reliable_mq.broker_core.topics import PATH as TOPICS_PATH
from reliable_mq.broker_core.topics import DataVersion, TopicConfig, TopicTable
from reliable_mq.errors import StoreError
from reliable_mq.failover.controlled import Controlled
from reliable_mq.line_limit import limited_log
from reliable_mq.message import new_message_id
from reliable_mq.replication.ha_figures import TablesState
from reliable_mq.replication.ha_status import status_of_master
from reliable_mq.telemetry import broker_events
from reliable_mq.telemetry.families import Sample
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.command import Command
from reliable_mq.wire.long_frame import AnyFrame
from reliable_mq.wire.properties import REAL_TOPIC, TAGS, WAIT, encode_properties
from reliable_mq.wire.record import pack_host

_RELEASED_AT_ONCE = 8  # new topics, by one callback: a list has a thousand
_OP_PROPERTIES = encode_properties({WAIT: "true", TAGS: SETTLED_TAG})  # as Apache's broker writes

log = limited_log(__name__)


def _status_without_slaves(config: BrokerConfig, log_end: int) -> dict[str, Any]:
    """Return the status of a master that no slave follows."""
    return status_of_master((), log_end, config.ha_gap_max, 0.0)


class PeerConnection(msgspec.Struct, frozen=True):
    """One peer. `host` is packed as in records; `address` is "ip:port".

    `is_own`: it is this process itself, over a connection that nobody else can have.
    """

    id: int
    host: bytes
    address: str
    is_own: bool = False


class Request(msgspec.Struct, gc=False):
    """A command, its connection, and its time of arrival. `user`: who has signed it; "": nobody."""

    connection: PeerConnection
    command: Command
    now_ms: int
    user: str = ""


class Turn(msgspec.Struct):
    """The actions of one turn of the event loop.

    `batch` is written (and synced) first. Then the caller reports it to the core, and more replies
    may leave. `replies` may leave at once. `files` are configuration texts by path. The caller
    reports when they are written; the core returns no other files before.
    `audit` has new lines of the audit, which are written before any reply leaves.
    `registered_replies` leave when the name servers know the current topics, or cannot be reached.
    """

    batch: LogBatch | None
    replies: list[Answer]
    files: dict[str, FileText]
    registered_replies: list[Answer] = msgspec.field(default_factory=list)
    audit: Sequence[bytes] = ()


class BrokerState:
    """Tables, store and replies of one broker.

    A reply about a new topic also waits until the file of the topics is saved.
    """

    epoch: int | None = None  # of the last promotion; None: it has no slaves
    controlled: Controlled | None = None  # by a controller; None: by an operator
    is_unverified = False  # whether a slave's log may differ from its master's
    is_index_stuck = False  # whether the index cannot be written
    started_ms = 0
    _message_count = 0
    wants_unused_dropped = False  # whether to remove the queues of deleted topics

    def __init__(self, config: BrokerConfig, store: MessageStore, timers: Timers) -> None:
        self.config = config
        self.store = store
        self.host = pack_host(config.broker_ip, config.listen_port)
        self.send_reply = SendReply(
            self.host[:-4], config.listen_port, config.region_id, trace_on=config.trace_on
        )
        self.broker_properties = encode_properties(config.message_properties)
        self.topics = TopicTable()
        self.groups = GroupTable(auto_create=config.auto_create_group)
        self.offsets = OffsetTable()
        self.commits_at_slave = CommitsAtSlave()
        self.request_modes = RequestModes()
        self.cold_read_thresholds: dict[str, int] = {}  # bytes by group; for tools only
        self.clients = ClientTable()
        self.member_notices = MemberNotices(self._members_to_tell, self.reply)
        self.locks = OrderLocks(config.lock_lifetime_ms)
        self.pulls = WaitingPulls(config.pull_limits)
        self.pops, self.notifications = WaitingPops(), WaitingPops()
        self.popped, self.orders = Popped(), PopOrders()
        self.topic_brokers: TopicBrokers[Request] = TopicBrokers()
        self.calls, self.guests = ClientCalls(), Guests()
        self.schedule = DelaySchedule(config.delays_ms)
        self.halves = PendingHalves()
        self.half_counts = TopicCounts(OF_HALVES)
        self.config_version = DataVersion()
        self.access = AccessTable()
        self.guard = Guard(config.access, self.access) if config.authenticates else None
        self.timers = timers
        # Topics that are not saved yet, with the replies that wait: (log end, connection, frame)
        self.new_topics: dict[str, list[tuple[int, int, bytes]]] = {}
        self.unregistered: dict[str, None] = {}  # topics whose change name servers do not know
        self._ends: list[tuple[int, bytes]] = []  # replies to requests that ended a transaction
        self._ends_ms = 0
        self.pressure = Pressure(config.pressure_limits)
        self.quotas = BrokerQuotas(config)
        self.retention = LogRetention(config.retention)
        self.statistics = Statistics(config.broker_cluster_name, self.topics.is_system)
        self.ha_status: Callable[[int], dict[str, Any]] = partial(_status_without_slaves, config)
        self.ha_figures: Callable[[int], Iterable[Sample]] = lambda _now_ms: ()  # for metrics
        self.master_tables, self.stand_in = TablesState(), StandIn()  # of a slave
        self.processors = 1  # of the machine
        self.memory_size = 10 * 1024**3  # of the machine, in bytes
        self.is_exposed = False  # whether strangers reach it and may do everything
        self.is_log_exposed = False  # whether strangers can have the log as a slave has it
        self.has_name_server = False  # whether one runs in this process
        self.waiting_queries: deque[Request] = deque()  # queries that wait for the index
        self.works = LongWorks()
        self.answers = answers_of(config)
        self.registered_replies: list[Answer] = []  # for the next turn
        self.files = ConfigFiles()
        self.creators = Creators(self.topics, self.groups, self.access, self.files)
        self.audit = AuditRecord()

    @property
    def is_sync_flush(self) -> bool:
        """Whether an acknowledgement waits until the record is durable."""
        return self.config.flush_disk_type == SYNC_FLUSH

    def new_message_ids(self, now_ms: int) -> Iterator[bytes]:
        """Yield ids for messages without an id: time and address, then a counter."""
        shared = new_message_id(now_ms, self.host[-8:-4] + self.host[-2:] + bytes(4))[:-8].encode()
        while True:
            self._message_count += 1
            yield b"%b%08X" % (shared, self._message_count & 0xFFFFFFFF)

    def append(self, message: StoredMessage, now_ms: int) -> AppendResult:
        """Store a message. It becomes visible when it is durable."""
        return self.store.append(message, now_ms)

    def reply(self, connection: int, frame: AnyFrame) -> None:
        """Send a reply at the end of this turn."""
        self.answers.now(connection, frame)

    def reply_when_stored(self, connection: int, end: int, frame: bytes) -> None:
        """Send a reply when the log before `end` is stored as the flush type promises."""
        self.answers.when_stored(connection, end, frame)

    def _topics_saved(self, names: Collection[str]) -> None:
        """Release the replies that waited for new topics; some still wait for the log."""
        for end, connection, frame in chain.from_iterable(map(self.new_topics.pop, names)):
            self.answers.unsaved -= 1
            self.answers.late(connection, end, frame)

    def reply_when_saved(self, request: Request, answer: Command) -> None:
        """Send a reply when the current configuration is on the medium."""
        if not request.command.is_oneway:
            connection, frame = request.connection.id, encode_answer(answer)
            self.files.when_saved(lambda: self.answers.now(connection, frame))

    def reply_when_registered(self, request: Request, answer: Command) -> None:
        """Send a reply when the current topics are saved and known at the name servers.

        The client asks a name server next. One that cannot be reached is skipped.
        """
        if not request.command.is_oneway:
            connection, frame = request.connection.id, encode_answer(answer)
            self.files.when_saved(lambda: self.registered_replies.append((connection, frame)))

    def settled(self, connection: int, frame: bytes | None, now_ms: int) -> None:
        """Note that a half was settled, or resumed; `frame` leaves when this is stored."""
        self._ends_ms = now_ms
        if frame:
            self._ends.append((connection, frame))

    def settled_before(self, connection: int, frame: bytes) -> None:
        """Send `frame` when the earlier settlement of a half message is on the medium."""
        log = self.store.log
        if self.halves.is_op_due:
            self._ends.append((connection, frame))
        elif log.end > (log.durable if self.is_sync_flush else log.written):
            self.reply_when_stored(connection, log.end, frame)
        else:
            self.reply(connection, frame)

    def count_halves(self, now_ms: int) -> None:
        """Count the pending half messages by their real topic."""
        for _, log_offset in self.halves.oldest(len(self.halves)):
            half = self.store.read_record(log_offset)
            if half is not None:
                self.count_half(half.property_map(), 1, now_ms)

    def count_half(self, properties: Mapping[str, str], change: int, now_ms: int) -> None:
        """Note that a half message with these properties is pending (1), or no longer (-1)."""
        self.half_counts.add(properties.get(REAL_TOPIC, ""), change, now_ms)

    def record_settled(self) -> None:
        """Write the settled half messages to the op topic, many in one record."""
        halves = self.halves
        while unrecorded := halves.next_unrecorded(self.config.transaction_op_size_max):
            queue_id, body = unrecorded
            record = StoredMessage(
                topic=OP_TOPIC,
                queue_id=queue_id,
                body=body,
                properties=_OP_PROPERTIES,
                flag=0,
                sys_flag=0,
                born_time_ms=self._ends_ms,
                born_host=self.host,
            )
            place = self.append(record, self._ends_ms)
            halves.recorded(queue_id, place.queue_offset, body)
        ends, self._ends = self._ends, []
        for connection, frame in ends:
            self.reply_when_stored(connection, self.store.log.end, frame)

    def try_to_record_settled(self) -> None:
        """Call `record_settled`. Without room on the disk, retry later; replies wait until then."""
        try:
            self.record_settled()
        except StoreError as error:
            if not is_out_of_room(error):
                raise
            self.pressure.note_no_file(self._ends_ms)

    def collect_statistics(self, now_ms: int) -> None:
        """Count messages put and pulled up to now."""
        self.statistics.collect(self.take_grown(), now_ms)

    def take_grown(self) -> set[ConsumeQueue]:
        """Return the queues whose new messages count. What a slave copies was put at its master."""
        grown = self.store.upkeep.take_grown()
        if not self.config.is_slave:
            return grown
        for queue in grown:
            queue.take_growth()
        return set()

    def note_pressure(self, now_ms: int) -> None:
        """Decide whether sends are refused; see `Pressure`."""
        self.pressure.note_sends(self.answers.waiting, self.answers.released, now_ms)
        waited_ms = self.pressure.wait_ms
        self.statistics.wait_ms_max = max(self.statistics.wait_ms_max, waited_ms)

    @property
    def is_turn_due(self) -> bool:
        """Whether a turn has more to do than to send replies."""
        return self.halves.is_op_due or bool(
            self.store.log.pending
            or self.popped.is_due
            or self.pops.ready
            or self.notifications.ready
            or self.answers.held
            or self.files.changed
            or self.files.due
            or self.registered_replies
            or self.pulls.ready
            or self.works.busy
        )

    def put_topic(self, topic: TopicConfig, now_ms: int) -> None:
        """Add or replace a topic, save the table and inform the name servers."""
        self.topics.set_topic(topic, now_ms)
        self.topics_changed([topic.topic_name])

    def hold_topics(self, names: Iterable[str]) -> list[str]:
        """Let replies to sends to topics wait for `topics_changed`; return those that are new."""
        new = [name for name in dict.fromkeys(names) if name not in self.new_topics]
        self.new_topics.update((name, []) for name in new)
        return new

    def topics_changed(self, names: Collection[str] = (), held: Iterable[str] = ()) -> None:
        """Save the topics, and inform the name servers about these topics.

        A deleted topic has no name here: the caller informs the servers. `held`: see `hold_topics`.
        """
        self.files.change(TOPICS_PATH, self.topics.dump)
        self.unregistered.update(dict.fromkeys(names))
        new = [*held, *self.hold_topics(names)]
        for at in range(0, len(new), _RELEASED_AT_ONCE):
            self.files.when_saved(partial(self._topics_saved, new[at : at + _RELEASED_AT_ONCE]))

    def take_unregistered(self) -> list[str]:
        """Return the topics that must be registered at the name servers."""
        names, self.unregistered = list(self.unregistered), {}
        return names

    def find_group(self, name: str, now_ms: int, user: str = "") -> GroupConfig | None:
        """Return a consumer group; a new group of `user` is created and saved if allowed."""
        group = self.groups.by_name.get(name)
        if group is not None or self.topics.is_overfull or not self.groups.may_be_created(name):
            return group
        if fault := self.creators.fault("group", (name,), user, self.config):
            broker_events.GROUP_NOT_CREATED.log(log, group=name, reason=fault)
            return None
        group = self.groups.find(name, now_ms)
        if group is not None:
            self.creators.note("group", (name,), user)
            self.groups_changed()
        return group

    def groups_changed(self) -> None:
        """Save the groups."""
        self.groups.is_dirty = False
        self.files.change(GROUPS_PATH, self.groups.dump)
        self.files.when_saved(self.groups.saved(frozenset(self.groups.unsaved)))

    def notify_group(self, name: str) -> None:
        """Tell the members of a consumer group to rebalance: now, or soon if there are many."""
        self.member_notices.note(name)

    def _members_to_tell(self, name: str) -> Collection[int]:
        """Return the connections of those who are told of changes of a group."""
        group = self.clients.consumer_group(name)
        config = self.groups.get(name)
        if group is None or group.message_model == "BROADCASTING":
            return ()
        is_wanted = config is None or config.notify_consumer_ids_changed_enable
        return group.members if self.config.notify_group_changes and is_wanted else ()

    def change_config(self, config: BrokerConfig, now_ms: int) -> None:
        """Apply other settings, also where an object was built from the former ones."""
        if config.auto_create_topic != self.config.auto_create_topic:
            self.topics.allow_creation(
                auto_create=config.auto_create_topic,
                queues=config.default_topic_queues,
                now_ms=now_ms,
            )
            self.topics_changed([DEFAULT_TOPIC])
        self.groups.allow_creation(auto_create=config.auto_create_group)
        self.topics.forget_lanes()
        self.locks.change_lifetime(config.lock_lifetime_ms)
        self.retention.change_rules(config.retention)
        self.pressure.change_limits(config.pressure_limits, is_full=self.retention.is_full)
        self.store.log.read_ahead(is_wanted=config.data_read_ahead)
        self.quotas.change(config)
        self.pulls.limits = config.pull_limits
        self.config = config
