"""The real system of one corpus, and what can be done to it.

Receives addresses of servers; hands on acts: place orders, kill, reset, void, lose. It notes with
every message what a reconciliation has to find, and knows no rule by which one would find it.
"""

import itertools
import os
import signal
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy import bindparam, create_engine, func, select, text
from tests.broker_core.raw_client import RawClient
from tests.reconcile.corpus.application import LOYALTY, NAME, PAYMENTS, TABLES, TOPIC, Order, shop
from tests.waiting import until

from examples.demo.loss import AcknowledgedMessage, delete_message
from examples.demo.processes import Process
from reliable_mq import ReliableMQ
from reliable_mq.client.thread_client import Client
from reliable_mq.escalate.sql_operator_actions import OperatorActions
from reliable_mq.message import Decision, Message, SendResult
from reliable_mq.outbox.half import half_group
from reliable_mq.outbox.stub import StubEvent
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.message_id import decode_offset_message_id

ROOT = Path(__file__).parents[3]
FREE_TOPIC = "free"
HERE = f"{__package__}.application:mq"
BANK = f"{__package__}.application:payments"
PRODUCER = f"{__package__}.application"
BEFORE_MARKING = "broker: answered SEND_BATCH_MESSAGE"
BEFORE_TELLING = "broker: before SEND_MESSAGE_V2"
"""Crash points: the broker has acknowledged, and the stub is not told; the effect is committed, and
its notice to the stub's database is the first thing that is sent."""
MESSAGE_SIZE_MAX = 16 * 1024
SEND_AT_ONCE = 500
BROKER = {
    "maxMessageSize": str(MESSAGE_SIZE_MAX),
    # The broker asks soon for halves that nobody ended, and also on a busy machine until one hears.
    "transactionTimeOut": "300",
    "transactionCheckInterval": "200",
    "transactionCheckMax": "100000",
    # It looks all the time for segments that are an hour old.
    "fileReservedTime": "1",
    "deleteWhen": ";".join(f"{hour:02d}" for hour in range(24)),
    "cleanResourceInterval": "100",
}
Expected = dict[tuple[str, str], str]


class Scene:
    """A broker, a worker and a producer at work on one database. A context manager.

    Args:
        directory: gets the broker's store and the processes' logs.
        database: SQLAlchemy URL of an empty database.
        other_database: the same of another one, to which a group moves.
        redis: URL.
        segment_size: of the broker's commit log.
    """

    def __init__(
        self,
        directory: Path,
        database: str,
        other_database: str,
        redis: str,
        segment_size: int = 128 * 1024,
    ) -> None:
        settings = {**BROKER, "mappedFileSizeCommitLog": str(segment_size)}
        self.directory, self.segment_size = directory, segment_size
        self.database, self.other_database, self._redis = database, other_database, redis
        self.broker = ReliableMQBroker(directory, "ASYNC_FLUSH", settings=settings)
        self.expected: Expected = {}
        self.kinds: dict[str, list[str]] = defaultdict(list)
        self._numbers = itertools.count(1)
        self._engine = create_engine(database)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.broker.start()
        self._stack.callback(self.broker.kill)
        self._stack.callback(self._engine.dispose)
        self.mq = shop(**self._place)
        self.mq.create_tables()
        TABLES.create_all(self._engine)
        self._stack.callback(self.mq.close)
        self.worker = self._process("worker", "reliable_mq.cli.main", "run", HERE)
        return self

    def _process(self, name: str, *module: str, **place: str) -> Process:
        """Return a process that runs a module where everything is, or at another `place`."""
        known = {**self._place, **place}
        environment = {f"RELIABLE_MQ_{key.upper()}": value for key, value in known.items()}
        paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
        environment["PYTHONPATH"] = os.pathsep.join(paths)
        process = Process(name, ("-m", *module), environment, self.directory / f"{name}.log")
        self._stack.callback(process.kill)
        return process

    def die(self, point: str, name: str, *module: str, **place: str) -> None:
        """Let a module run until it is killed at a crash point."""
        crashing = ("reliable_mq.testing.crash_points", *module)
        process = self._process(name, *crashing, **place, crash_at=point)
        process.start()
        until(lambda: not process.is_running, lambda: f"{name} does not die {point}")
        assert process.exit_code == -signal.SIGKILL, process.log_tail()

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def _place(self) -> dict[str, str]:
        broker = self.broker.name_server_address
        return {"broker": broker, "database": self.database, "redis": self._redis}

    def rows(self, statement: str, **values: Any) -> list[Any]:
        """Return the rows of a question; a list as value stands behind IN."""
        found: list[Any] = self._do(statement, values).fetchall()
        return found

    def change(self, statement: str, **values: Any) -> None:
        """Change rows as a bad script would; exactly as many as ids are given."""
        changed = self._do(statement, values).rowcount
        assert changed == len(values.get("ids", (1,))), f"{statement}: {changed} rows"

    def _do(self, statement: str, values: Mapping[str, Any]) -> Any:
        names = [name for name, value in values.items() if isinstance(value, list)]
        bound = text(statement).bindparams(*(bindparam(name, expanding=True) for name in names))
        with self._engine.begin() as connection:
            found = connection.execute(bound, dict(values))
            return found.freeze()() if found.returns_rows else found

    def until(self, statement: str, wanted: int, **values: Any) -> None:
        """Return when a count has come to `wanted`."""
        until(lambda: self.rows(statement, **values)[0][0] == wanted, lambda: statement)

    def expect(self, ids: Sequence[str], **verdicts: str) -> None:
        """Note the verdicts of messages, by group; `nobody` stands for no group."""
        for identity in ids:
            for group, verdict in verdicts.items():
                self.expected[identity, "" if group == "nobody" else group] = verdict

    def place(
        self,
        count: int,
        kind: str,
        verdicts: Mapping[str, str],
        *,
        half: bool = False,
        delay: timedelta | None = None,
        required: tuple[str, ...] | None = None,
        **order: str,
    ) -> list[str]:
        """Commit orders, for the groups that hear of them or others; return their messages' ids."""
        orders = [Order(next(self._numbers), **order) for _ in range(count)]
        ids: list[str] = []
        for at in range(0, count, SEND_AT_ONCE):
            part = orders[at : at + SEND_AT_ONCE]
            with self.mq.transaction(half=half) as tx:
                if delay is None:
                    ids += tx.send_many(
                        TOPIC, part, key=lambda one: one.id, required_groups=required
                    )
                else:
                    ids += [tx.send(TOPIC, one, key=one.id, delay=delay) for one in part]
        self.kinds[kind] += ids
        self.expect(ids, **verdicts)
        return ids

    def place_and_die(self, count: int, kind: str, verdicts: Mapping[str, str]) -> None:
        """Commit orders in a process that dies when the broker has acknowledged them."""
        numbers = [str(next(self._numbers)) for _ in range(count)]
        self.die(BEFORE_MARKING, "producer", PRODUCER, *numbers)
        question = "SELECT message_id FROM rmq_message_stub WHERE message_key IN :keys"
        ids = [row[0] for row in self.rows(question, keys=numbers)]
        assert len(ids) == count
        self.kinds[kind] += ids
        self.expect(ids, **verdicts)

    def consume_and_die(self) -> None:
        """Let payments, whose effects lie in the other database by now, die with its news."""
        self.die(
            BEFORE_TELLING,
            "bank",
            "reliable_mq.cli.main",
            "run",
            BANK,
            database=self.other_database,
        )

    def wait_until_sent(self, ids: list[str]) -> None:
        question = (
            "SELECT count(*) FROM rmq_message_stub"
            " WHERE message_id IN :ids AND broker_name IS NOT NULL"
        )
        self.until(question, len(ids), ids=ids)

    def wait_until_consumed(self, group: str, ids: list[str], state: int = 1) -> None:
        question = (
            "SELECT count(*) FROM rmq_consume_log"
            " WHERE message_id IN :ids AND consumer_group = :name AND state = :state"
        )
        for at in range(0, len(ids), SEND_AT_ONCE):
            some = ids[at : at + SEND_AT_ONCE]
            self.until(question, len(some), ids=some, name=group, state=state)

    def wait_for_dead_letters(self, group: str, count: int) -> None:
        """Return when so many lie in the group's dead-letter topic."""

        def are_there() -> bool:
            with RawClient(self.broker.address) as tool:
                header = {"topic": f"%DLQ%{group}"}
                answer = tool.ask(RequestCode.GET_TOPIC_STATS_INFO, header)
            if answer.code != ResponseCode.SUCCESS:  # there is no such topic yet
                return False
            queues = fastjson.loads(answer.body)["offsetTable"].values()
            return bool(sum(each["maxOffset"] for each in queues) >= count)

        until(are_there, lambda: f"not {count} dead letters of {group}")

    def wait_until_committed(self, group: str) -> None:
        """Return when the group's offsets are committed up to the ends of its queues."""

        def are_at_the_end() -> bool:
            with RawClient(self.broker.address) as tool:
                answer = tool.ask(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group})
            if answer.code != ResponseCode.SUCCESS:
                return False
            queues = fastjson.loads(answer.body)["offsetTable"].values()
            return all(each["consumerOffset"] == each["brokerOffset"] for each in queues)

        until(are_at_the_end, lambda: f"{group} has not committed all offsets")

    def send_aside(
        self, topic: str, bodies: Sequence[bytes], message_id: str = ""
    ) -> list[SendResult]:
        """Send without a transaction, as some other program would."""
        messages = [Message(topic=topic, body=one, message_id=message_id) for one in bodies]
        with Client(self.broker.name_server_address) as client:
            results = client.send_many(messages)
        assert all(isinstance(one, SendResult) for one in results), results
        return [one for one in results if isinstance(one, SendResult)]

    def fill_segment(self) -> None:
        """Send messages of nobody's until the log's next segment has begun."""
        segments: set[int] = set()
        while len(segments) < 2:
            for sent in self.send_aside(FREE_TOPIC, [bytes(1000)] * 10):
                at = decode_offset_message_id(sent.offset_message_id).commit_log_offset
                segments.add(at // self.segment_size)
                if at >= self.segment_size:
                    self.expect([sent.message_id], nobody="unmanaged")

    def age_first_segment(self) -> None:
        """Let the broker find that the time of its oldest messages is over, and remove them."""
        first = self.broker.store / "commitlog" / f"{0:020d}"
        os.utime(first, times=(0, 0))
        until(lambda: not first.exists())

    def begin_half(self, body: bytes) -> str:
        """Send a half of a producer that dies before its transaction commits."""
        group = half_group(NAME, self.mq.database.identity.value())
        with Client(self.broker.name_server_address) as client:
            client.join_transactions(group, lambda _: Decision.UNKNOWN)
            half = client.send_half(Message(topic=TOPIC, body=body), group)
        return str(half.message_id)

    def reset_to_end(self, group: str) -> None:
        """Let a group go on behind the last message that is stored."""
        self._reset(group, timestamp=-1, queueId=-1)

    def reset_to(self, group: str, ids: list[str]) -> None:
        """Let a group go on with these messages."""
        question = (
            'SELECT queue_id, min("offset") FROM rmq_message_stub'
            " WHERE message_id IN :ids GROUP BY queue_id"
        )
        for queue, offset in self.rows(question, ids=ids):
            self._reset(group, timestamp=0, queueId=queue, offset=offset)

    def _reset(self, group: str, **place: int) -> None:
        header = {"topic": TOPIC, "group": group, **place}
        with RawClient(self.broker.address) as tool:
            answer = tool.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
        assert answer.code == 0, answer.remark

    def void(self, ids: Sequence[str]) -> None:
        """Give stubs up by hand."""
        hands = OperatorActions(self.mq.database, StubEvent.VOID, actor="tester", why="not wanted")
        done = {name: was for part in hands.change_ids(ids) for name, was in part.items()}
        assert done == dict.fromkeys(ids, True)

    def lose(self, ids: list[str]) -> None:
        """Let the broker lose messages that it acknowledged."""
        question = (
            'SELECT message_id, topic, queue_id, "offset" FROM rmq_message_stub'
            " WHERE message_id IN :ids"
        )
        for row in self.rows(question, ids=ids):
            at = delete_message(self.broker.store, AcknowledgedMessage(*row))
            host, _, port = self.broker.address.partition(":")
            packed = bytes(map(int, host.split("."))) + int(port).to_bytes(4, "big")
            # What lies there now is nobody's message without an id of its own.
            self.expect([(packed + at.to_bytes(8, "big")).hex().upper()], nobody="unmanaged")

    def consume_here(self) -> ReliableMQ:
        """Return the application, consuming in this process; close it."""
        mq = shop(**self._place)
        mq.start()
        return mq

    def consume_elsewhere(self, group: str, ids: list[str]) -> None:
        """Let a group whose effects now lie in another database consume messages once more."""
        mq = shop(broker=self.broker.name_server_address, database=self.other_database)
        mq.create_tables()
        TABLES.create_all(mq.database.engine)
        self.reset_to(group, ids)
        mq.start()
        logs = mq.database.logs.c
        wanted = select(func.count()).where(logs.state == 1, logs.message_id.in_(ids))

        def is_consumed() -> bool:
            with mq.database.engine.connect() as connection:
                return connection.execute(wanted).scalar_one() == len(ids)

        until(is_consumed)
        mq.close()


__all__ = ["LOYALTY", "PAYMENTS", "Expected", "Scene"]
