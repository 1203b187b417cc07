"""The tables of a master, as a slave takes them over, and what the slave tells its master.

Receives the replies of the master. Changes the slave's tables, and has them saved. What is as the
slave has it is left alone: the tables come again every few seconds.

Some tables say what is done with messages: offsets, delivered delays and timers. Such a table waits
until this slave has the log up to where the master's ended behind it. Otherwise a slave that lags
would know a message as delivered whose delivery it does not have. If it were promoted then, the
message would be lost, as it may be with Apache's slave.
Invariant K9: a table of progress is taken over only when everything that it claims is in this log.
Source: Apache RocketMQ `SlaveSynchronize`.
"""

from collections.abc import Callable

import msgspec

from reliable_mq.broker_core.commits_at_slave import TOLD_AT_ONCE, CommittedPlace
from reliable_mq.broker_core.delivery import schedule, topic_counts
from reliable_mq.broker_core.delivery.followed_timers import OwnLog
from reliable_mq.broker_core.names import TIMER_TOPIC
from reliable_mq.broker_core.request_modes import PATH as MODES_PATH
from reliable_mq.broker_core.state import BrokerState
from reliable_mq.broker_core.store.timer_checkpoint import timer_checkpoint_from
from reliable_mq.errors import ProtocolError
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import UpdateConsumerOffsetHeader

_Take = Callable[["MasterTables", bytes, int], None]


class MasterTables:
    """Takes over the tables of one master. Ask it for a round of requests again and again."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state
        self._own_log = OwnLog(0, 0, 0)  # before the questions
        self._answers: list[tuple[RequestCode, bytes]] = []  # of this round, not taken over yet
        self._waiting: list[tuple[RequestCode, bytes]] = []  # of an earlier round
        self.log_end = 0  # of the master, behind `_waiting`
        self._life = ""  # when the master began, by its own account
        self._known: dict[int, bytes] = {}  # the last reply of each table that was taken over

    @property
    def is_waiting(self) -> bool:
        """Whether tables wait for the log."""
        return bool(self._waiting)

    def begin(self) -> list[Command]:
        """Begin a round: return its requests. Pass each reply to `answered`, in this order."""
        self._answers.clear()
        codes = [*_TABLES]
        if not self._waiting:
            store = self._state.store
            timed = store.queue(TIMER_TOPIC, 0)
            self._own_log = OwnLog(
                store.dispatched, store.appender.last_time_ms, timed.end if timed else 0
            )
            codes += [*_PROGRESS]
        return [request(code) for code in (*codes, RequestCode.GET_BROKER_RUNTIME_INFO)]

    def answered(self, code: int, answer: Command, now_ms: int) -> None:
        """Take over a table, or keep it for `settle`.

        Raises:
            ValueError, ProtocolError, MsgspecError: when it is no such table, or the master refuses
                it. The slave's table is as before.
        """
        if answer.code != ResponseCode.SUCCESS:
            # Brokers before RocketMQ 5 lack some tables. Ours is busy while it saves many offsets.
            if code in _NOT_EVERYWHERE or answer.code == ResponseCode.SYSTEM_BUSY:
                return
            raise ProtocolError(f"request {int(code)} is refused: {answer.remark}")
        code = RequestCode(code)
        if code in _TABLES:
            self._take(_TABLES, code, answer.body, now_ms)
        elif code in _PROGRESS:
            self._answers.append((code, answer.body))
        else:
            self._take_bounds(answer.body)

    def _take_bounds(self, runtime_info: bytes) -> None:
        """Note where the master's log ends: what was answered before waits for that.

        Raises:
            ProtocolError: when the master has started again while its tables wait. It may have lost
                the end of its log, which they speak of, and which then never comes.
        """
        life = _text_of(runtime_info, "bootTimestamp")
        end = log_bounds(runtime_info)[1]
        if not self._waiting:
            self._life, self.log_end = life, end
            self._waiting, self._answers = self._answers, []
        elif life != self._life or end < self.log_end:
            raise ProtocolError("the master has started again: its tables are taken over anew")

    def settle(self, now_ms: int) -> bool:
        """Take over the tables that waited, if the log is there; return whether it is.

        Raises:
            ValueError, MsgspecError: see `answered`. The rest of the tables is dropped.
        """
        if self._waiting and self._state.store.log.durable < self.log_end:
            return False
        waiting, self._waiting = self._waiting, []
        for code, body in waiting:
            self._take(_PROGRESS, code, body, now_ms)
        return True

    def _take(self, takes: dict[int, _Take], code: int, body: bytes, now_ms: int) -> None:
        """Take over a table, unless it is the last one again: large ones take long to read."""
        is_same = self._known.get(code) == body
        has_own = code == RequestCode.GET_ALL_CONSUMER_OFFSET and self._state.commits_at_slave
        if is_same and not has_own and code != RequestCode.GET_TIMER_CHECK_POINT:
            return
        self._known.pop(code, None)
        takes[code](self, body, now_ms)
        self._known[code] = body

    def lost(self) -> None:
        """Forget what waits: the master is gone, or it is another one."""
        self._waiting, self._answers = [], []
        self._known.clear()

    def commits(self) -> list[tuple[CommittedPlace, int, Command]]:
        """Return the offsets that the master lacks, with the requests that commit them there."""
        found: list[tuple[CommittedPlace, int, Command]] = []
        for place, offset in list(self._state.commits_at_slave.all().items())[:TOLD_AT_ONCE]:
            header = UpdateConsumerOffsetHeader(
                consumer_group=place.group,
                topic=place.topic,
                queue_id=place.queue_id,
                commit_offset=offset,
            )
            command = request(RequestCode.UPDATE_CONSUMER_OFFSET, header.to_ext())
            found.append((place, offset, command))
        return found

    def committed(self, place: CommittedPlace, offset: int, answer: Command, now_ms: int) -> None:
        """Note the master's answer to a commit. It refuses those of groups that it lacks."""
        commits = self._state.commits_at_slave
        self._known.pop(RequestCode.GET_ALL_CONSUMER_OFFSET, None)
        if answer.code == ResponseCode.SUCCESS:
            commits.forget(place, offset)
        elif answer.code not in _LATER:
            commits.refuse(place, offset, now_ms)

    def _take_topics(self, body: bytes, now_ms: int) -> None:
        topics = self._state.topics
        gone, changed = topics.take_over(body.decode())
        for name in gone:
            topics.remove(name, now_ms)
        if gone or changed:
            self._state.topics_changed(changed)

    def _take_groups(self, body: bytes, _now_ms: int) -> None:
        if self._state.groups.take_over(body.decode()):
            self._state.groups_changed()

    def _take_modes(self, body: bytes, _now_ms: int) -> None:
        modes = self._state.request_modes
        if modes.take_over(body.decode()):
            self._state.files.change(MODES_PATH, modes.dump)

    def _take_offsets(self, body: bytes, _now_ms: int) -> None:
        """Take over the offsets, except where consumers have committed more at this slave."""
        offsets, commits = self._state.offsets, self._state.commits_at_slave
        offsets.take_over(body.decode())
        for place, offset in list(commits.all().items()):
            known = offsets.get(place.group, place.topic, place.queue_id)
            if known is None or known < offset:
                offsets.commit(place.group, place.topic, place.queue_id, offset)
            else:
                commits.forget(place, offset)

    def _take_delays(self, body: bytes, now_ms: int) -> None:
        delays = self._state.schedule
        before = delays.saved()
        delays.take_over(body.decode(), now_ms)
        if delays.saved() != before:
            self._state.files.change(schedule.PATH, delays.dump)

    def _take_timers(self, body: bytes, _now_ms: int) -> None:
        if self._state.store.queue(TIMER_TOPIC, 0) is not None:
            told = timer_checkpoint_from(body)
            self._state.timers.followed.take(told, self._own_log)

    def _take_timer_counts(self, body: bytes, _now_ms: int) -> None:
        counts = self._state.timers.counts
        before = counts.text()
        counts.load(body.decode())
        if counts.text() != before:
            self._state.files.change(topic_counts.TIMERS_PATH, counts.dump)


def log_bounds(runtime_info: bytes) -> tuple[int, int]:
    """Return where a broker's log begins and ends, by its reply to GET_BROKER_RUNTIME_INFO.

    Raises:
        ValueError, KeyError, MsgspecError: when it does not say it.
    """
    table = msgspec.json.decode(runtime_info, type=dict[str, dict[str, str]])["table"]
    # Apache's broker without any message says that its log begins at -1.
    return max(0, int(table["commitLogMinOffset"])), int(table["commitLogMaxOffset"])


def epoch_of(runtime_info: bytes) -> int:
    """Return the epoch of a master, by the same reply; 0: it has none, as Apache's.

    Raises: see `log_bounds`.
    """
    return int(_text_of(runtime_info, "brokerEpoch") or 0)


def _text_of(runtime_info: bytes, name: str) -> str:
    table = msgspec.json.decode(runtime_info, type=dict[str, dict[str, str]])["table"]
    return table.get(name, "")


_LATER = frozenset({ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL})

_TABLES: dict[int, _Take] = {
    RequestCode.GET_ALL_TOPIC_CONFIG: MasterTables._take_topics,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: MasterTables._take_groups,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: MasterTables._take_modes,
}
_PROGRESS: dict[int, _Take] = {
    RequestCode.GET_ALL_CONSUMER_OFFSET: MasterTables._take_offsets,
    RequestCode.GET_ALL_DELAY_OFFSET: MasterTables._take_delays,
    RequestCode.GET_TIMER_CHECK_POINT: MasterTables._take_timers,
    RequestCode.GET_TIMER_METRICS: MasterTables._take_timer_counts,
}
_NOT_EVERYWHERE = frozenset(
    {
        RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
        RequestCode.GET_TIMER_CHECK_POINT,
        RequestCode.GET_TIMER_METRICS,
    }
)
