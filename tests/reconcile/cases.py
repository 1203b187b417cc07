"""One message for every way into a verdict, and heaps of messages in random states."""

import random
import shutil
import zlib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.reconcile.checksums import same_checksum
from tests.reconcile.ledgers import (
    GRACE,
    JUST_NOW,
    LONG_AGO,
    NOW,
    StoreWriter,
    TableWriter,
    message_id,
)

from reliable_mq.reconcile.judgement.verdict import Verdict

SEGMENT_SIZE = 64 * 1024
BODY = b'{"order": 1}'
DELETED_TOPIC = "closed"
Expected = dict[tuple[str, str], Verdict]


class Cases:
    """Ledgers in the making. Every case has a queue of its own, so that progress is its own."""

    def __init__(self, url: str, root: Path) -> None:
        self.store = StoreWriter(root, SEGMENT_SIZE)
        self.tables = TableWriter(url)
        self.expected: Expected = {}
        self._number = 0

    def new(self, **verdicts: Verdict) -> tuple[str, int]:
        """Begin a case; say what its message's verdict is, by group (`ack` for no group)."""
        self._number += 1
        identity = message_id(self._number)
        for group, verdict in verdicts.items():
            self.expected[identity, "" if group == "ack" else group] = verdict
        return identity, self._number

    def stub(self, identity: str, *groups: str, **columns: Any) -> None:
        columns.setdefault("content", BODY)
        self.tables.stub(identity, required_groups=",".join(groups), **columns)

    def send(self, identity: str, queue: int, body: bytes = BODY, **more: Any) -> dict[str, Any]:
        """Store a first delivery; return the columns of a stub that was told of it."""
        record = self.store.send(identity, body, queue_id=queue, **more)
        return self.tables.sent(record)

    def passed(self, group: str, queue: int, offset: int = 1) -> None:
        self.store.commit(group, "orders", queue, offset)

    def write(self) -> tuple[str, str]:
        return self.tables.write(), self.store.write()


def _settled(cases: Cases) -> None:
    identity, queue = cases.new(payments=Verdict.SETTLED)
    cases.stub(identity, "payments", status=1, **cases.send(identity, queue))
    cases.tables.log(identity, "payments", 1)
    # confirmed by the broker's acknowledgement; another group's log is welcome
    identity, queue = cases.new(ack=Verdict.SETTLED, audit=Verdict.SETTLED)
    cases.stub(identity, status=1, **cases.send(identity, queue))
    cases.tables.log(identity, "audit", 1)
    # delivered later, in a segment that retention took; a delay queue numbers its messages itself
    identity, queue = cases.new(ack=Verdict.SETTLED)
    place = {"broker_name": "broker-a", "queue_id": queue, "offset": 50_000, "count": 1}
    cases.stub(identity, status=1, deliver_time=LONG_AGO - timedelta(hours=1), **place)
    # compressed on the way, and sent twice
    identity, queue = cases.new(payments=Verdict.SETTLED)
    packed = zlib.compress(BODY)
    cases.send(identity, queue, packed, sys_flag=0x301)
    cases.stub(identity, "payments", status=1, **cases.send(identity, queue))
    cases.tables.log(identity, "payments", 1)


def _in_flight(cases: Cases) -> None:
    identity, _ = cases.new(payments=Verdict.IN_FLIGHT)
    cases.stub(identity, "payments", create_date=JUST_NOW)
    identity, queue = cases.new(payments=Verdict.IN_FLIGHT)
    cases.stub(identity, "payments", **cases.send(identity, queue))
    lease = {"owner": "worker-1", "lease_until": NOW + timedelta(seconds=20)}
    cases.tables.log(identity, "payments", 0, **lease)
    cases.passed("payments", queue)
    identity, queue = cases.new(payments=Verdict.IN_FLIGHT)  # to be delivered an hour from now
    cases.stub(identity, "payments", deliver_time=NOW + timedelta(hours=1))
    identity, queue = cases.new(payments=Verdict.IN_FLIGHT)  # written long ago, unsent till then
    far = {"create_date": LONG_AGO, "update_date": LONG_AGO, "resend_time": NOW}
    cases.stub(identity, "payments", deliver_time=NOW + timedelta(hours=1), **far)


def _waiting(cases: Cases) -> None:
    identity, queue = cases.new(payments=Verdict.WAITING)
    cases.stub(identity, "payments", **cases.send(identity, queue))
    # one of two groups has not reached it
    identity, queue = cases.new(loyalty=Verdict.SETTLED, payments=Verdict.WAITING)
    cases.stub(identity, "loyalty", "payments", **cases.send(identity, queue))
    cases.tables.log(identity, "loyalty", 1)
    # failed; the retry is stored and not yet reached
    identity, queue = cases.new(payments=Verdict.WAITING)
    cases.stub(identity, "payments", **cases.send(identity, queue))
    cases.passed("payments", queue)
    origin = {"UNIQ_KEY": identity, "RETRY_TOPIC": "orders"}
    cases.store.add("%RETRY%payments", BODY, properties=origin, queue_id=queue, reconsume_times=1)
    cases.tables.log(identity, "payments", 0)
    # failed; the retry waits in the delay queue
    identity, queue = cases.new(payments=Verdict.WAITING)
    cases.stub(identity, "payments", **cases.send(identity, queue))
    cases.passed("payments", queue)
    later = {"UNIQ_KEY": identity, "REAL_TOPIC": "%RETRY%payments", "DELAY": "18"}
    cases.store.add(
        "SCHEDULE_TOPIC_XXXX",
        BODY,
        properties=later,
        queue_id=17,
        reconsume_times=2,
        store_time=NOW - timedelta(hours=1),
    )
    # failed often, was sent again, and failed once more
    identity, queue = cases.new(payments=Verdict.WAITING)
    origin = {"UNIQ_KEY": identity, "RETRY_TOPIC": "orders"}
    cases.send(identity, queue)
    for tries in (1, 2, 3):
        retried: dict[str, Any] = {"queue_id": queue, "reconsume_times": tries}
        cases.store.add("%RETRY%payments", BODY, properties=origin, **retried)
    cases.stub(identity, "payments", **cases.send(identity, queue))
    cases.passed("payments", queue, 2)
    cases.store.commit("payments", "%RETRY%payments", queue, 3)
    later = {**origin, "REAL_TOPIC": "%RETRY%payments", "DELAY": "18"}
    failed: dict[str, Any] = {"queue_id": 17, "reconsume_times": 1}
    failed["store_time"] = NOW - timedelta(hours=1)
    cases.store.add("SCHEDULE_TOPIC_XXXX", BODY, properties=later, **failed)
    # a delayed message that is not due
    identity, queue = cases.new(payments=Verdict.WAITING)
    delayed = {"UNIQ_KEY": identity, "TAGS": "paid", "REAL_TOPIC": "orders", "DELAY": "18"}
    cases.store.add(
        "SCHEDULE_TOPIC_XXXX",
        BODY,
        properties=delayed,
        queue_id=17,
        store_time=NOW - timedelta(hours=1),
    )
    cases.stub(identity, "payments", broker_name="broker-a", queue_id=queue, offset=0)
    # given up once, and sent again since
    identity, queue = cases.new(payments=Verdict.WAITING)
    cases.store.add("%DLQ%payments", BODY, properties={"UNIQ_KEY": identity})
    cases.stub(identity, "payments", **cases.send(identity, queue))


def _not_there(cases: Cases) -> None:
    place = {"broker_name": "broker-a", "offset": 7, "count": 1}
    identity, queue = cases.new(payments=Verdict.LOST, loyalty=Verdict.LOST)
    cases.stub(identity, "loyalty", "payments", queue_id=queue, **place)
    identity, queue = cases.new(ack=Verdict.LOST)
    cases.stub(identity, status=1, queue_id=queue, **place)
    identity, queue = cases.new(ack=Verdict.LOST)
    due = LONG_AGO + timedelta(minutes=1)
    cases.stub(identity, status=1, deliver_time=due, queue_id=queue, **place)
    identity, _ = cases.new(payments=Verdict.NOT_SENT)
    cases.stub(identity, "payments", count=3)
    identity, _ = cases.new(ack=Verdict.NOT_SENT)
    cases.stub(identity)


def _half_done(cases: Cases) -> None:
    identity, queue = cases.new(payments=Verdict.SENT_NOT_MARKED)
    cases.send(identity, queue)
    cases.stub(identity, "payments")
    identity, queue = cases.new(ack=Verdict.SENT_NOT_MARKED)
    cases.send(identity, queue)
    cases.stub(identity)
    identity, queue = cases.new(payments=Verdict.NOT_CONSUMED)
    cases.stub(identity, "payments", **cases.send(identity, queue))
    cases.passed("payments", queue)
    identity, queue = cases.new(payments=Verdict.STUCK)
    cases.stub(identity, "payments", **cases.send(identity, queue))
    cases.passed("payments", queue)
    cases.tables.log(identity, "payments", 0, owner="worker-1", lease_until=LONG_AGO)
    identity, queue = cases.new(payments=Verdict.STUCK)
    cases.stub(identity, "payments", broker_name="broker-a", queue_id=queue, offset=0)
    overdue = {"UNIQ_KEY": identity, "TAGS": "paid", "REAL_TOPIC": "orders", "DELAY": "5"}
    cases.store.add("SCHEDULE_TOPIC_XXXX", BODY, properties=overdue, queue_id=4)
    identity, queue = cases.new(
        loyalty=Verdict.CONSUMED_NOT_CONFIRMED, payments=Verdict.CONSUMED_NOT_CONFIRMED
    )
    cases.stub(identity, "loyalty", "payments", **cases.send(identity, queue))
    cases.tables.log(identity, "loyalty", 1)
    cases.tables.log(identity, "payments", 1)
    identity, queue = cases.new(payments=Verdict.CONFIRMED_WITHOUT_LOG)
    cases.stub(identity, "payments", status=1, **cases.send(identity, queue))
    # the stub proves that it was consumed, though record and consume log are gone
    identity, queue = cases.new(payments=Verdict.CONFIRMED_WITHOUT_LOG)
    gone = {"broker_name": "broker-a", "queue_id": queue, "offset": 7, "count": 1}
    cases.stub(identity, "payments", status=1, **gone)


def _stranded(cases: Cases) -> None:
    """Messages of a topic that is deleted when all is written; one was read before."""
    identity, queue = cases.new(payments=Verdict.STRANDED)
    sent = cases.send(identity, queue, topic=DELETED_TOPIC)
    cases.stub(identity, "payments", topic=DELETED_TOPIC, **sent)
    identity, queue = cases.new(payments=Verdict.SETTLED)
    sent = cases.send(identity, queue, topic=DELETED_TOPIC)
    cases.stub(identity, "payments", topic=DELETED_TOPIC, status=1, **sent)
    cases.tables.log(identity, "payments", 1, topic=DELETED_TOPIC)
    identity, queue = cases.new(ack=Verdict.SETTLED)
    sent = cases.send(identity, queue, topic=DELETED_TOPIC)
    cases.stub(identity, topic=DELETED_TOPIC, status=1, **sent)


def _given_up(cases: Cases) -> None:
    # the dead letter has expired, but the stub knows of it
    identity, queue = cases.new(payments=Verdict.DEAD_LETTERED, loyalty=Verdict.WAITING)
    place = cases.send(identity, queue)
    cases.stub(identity, "loyalty", "payments", given_up_by="payments", **place)
    cases.passed("payments", queue)
    identity, queue = cases.new(payments=Verdict.DEAD_LETTERED)
    cases.stub(identity, "payments", **cases.send(identity, queue))
    dead = {"UNIQ_KEY": identity, "RETRY_TOPIC": "orders", "DEAD_LETTER_REASON": "no such card"}
    cases.store.add("%DLQ%payments", BODY, properties=dead, reconsume_times=16)
    # a person let the dead letter come again, and its group has not reached it
    identity, queue = cases.new(payments=Verdict.WAITING)
    cases.stub(identity, "payments", **cases.send(identity, queue))
    cases.passed("payments", queue)
    letter = {"UNIQ_KEY": identity, "RETRY_TOPIC": "orders"}
    cases.store.add("%DLQ%payments", BODY, properties=letter, reconsume_times=16)
    cases.store.add("%RETRY%payments", BODY, properties=letter, queue_id=queue)
    identity, queue = cases.new(payments=Verdict.VOIDED)
    cases.stub(identity, "payments", status=2, **cases.send(identity, queue))
    identity, queue = cases.new(payments=Verdict.VOIDED_BUT_CONSUMED)
    cases.stub(identity, "payments", status=2, **cases.send(identity, queue))
    cases.tables.log(identity, "payments", 1)
    # a half message that was rolled back: by its tombstone, and, twice, in spite of it
    identity, _ = cases.new(ack=Verdict.VOIDED)
    cases.stub(identity, status=2, content=b"")
    identity, queue = cases.new(ack=Verdict.ORPHAN)
    cases.stub(identity, status=2, content=b"")
    cases.send(identity, queue)
    identity, queue = cases.new(ack=Verdict.ORPHAN, payments=Verdict.VOIDED_BUT_CONSUMED)
    cases.stub(identity, status=2, content=b"")
    cases.send(identity, queue)
    cases.tables.log(identity, "payments", 1)


def _foreign(cases: Cases) -> None:
    identity, queue = cases.new(ack=Verdict.ORPHAN)
    cases.send(identity, queue)
    identity, _ = cases.new(payments=Verdict.ORPHAN)
    cases.tables.log(identity, "payments", 1)
    identity, queue = cases.new(ack=Verdict.UNMANAGED)
    cases.send(identity, queue, topic="free")
    record = cases.store.add("free", b"no id", properties={})
    cases.expected[f"{record.commit_log_offset:032X}", ""] = Verdict.UNMANAGED
    # A producer without ids: its message is known by where it lies, its retries by a property.
    record = cases.store.add("free", b"no id", properties={})
    identity = f"{record.commit_log_offset:032X}"
    cases.expected[identity, "payments"] = Verdict.UNMANAGED
    cases.tables.log(identity, "payments", 1, topic="free")
    origin = {"RETRY_TOPIC": "free", "ORIGIN_MESSAGE_ID": identity}
    cases.store.add("%RETRY%payments", b"no id", properties=origin)
    identity, queue = cases.new(payments=Verdict.CONTENT_DIFFERS)
    cases.stub(identity, "payments", status=1, **cases.send(identity, queue, b"something else"))
    cases.tables.log(identity, "payments", 1)
    # the same content, and another tag, key, property or topic
    changes: tuple[dict[str, Any], ...] = (
        {"tag": "refunded"},
        {"message_key": "7"},
        {"ordering_key": "carol"},
        {"properties": '{"region": "eu"}'},
        {"content_type": "text/plain"},
    )
    for change in changes:
        identity, queue = cases.new(payments=Verdict.CONTENT_DIFFERS)
        cases.stub(identity, "payments", status=1, **cases.send(identity, queue), **change)
        cases.tables.log(identity, "payments", 1)
    identity, queue = cases.new(payments=Verdict.CONTENT_DIFFERS)
    sent = cases.send(identity, queue, topic="free")
    cases.stub(identity, "payments", status=1, **sent)
    cases.tables.log(identity, "payments", 1)
    # another content of the same checksum
    identity, queue = cases.new(payments=Verdict.CONTENT_DIFFERS)
    twin = same_checksum(BODY)
    cases.stub(identity, "payments", status=1, **cases.send(identity, queue, twin))
    cases.tables.log(identity, "payments", 1)


def _forged(cases: Cases) -> None:
    """Somebody who can send to the topic took the id of a message that waited."""
    # the real one was consumed, behind the forged one or before it
    for at in (0, 1):
        identity, queue = cases.new(payments=Verdict.FORGED)
        bodies = (BODY, same_checksum(BODY)) if at == 0 else (same_checksum(BODY), BODY)
        sent = [cases.send(identity, queue, body) for body in bodies]
        cases.stub(identity, "payments", status=1, **sent[at])
        cases.tables.log(identity, "payments", 1, queue_id=queue, offset=at)
    # the forged one was consumed, and the real one suppressed
    identity, queue = cases.new(payments=Verdict.SUPPRESSED, audit=Verdict.FORGED)
    cases.send(identity, queue, same_checksum(BODY))
    cases.stub(identity, "payments", "audit", status=1, **cases.send(identity, queue))
    cases.tables.log(identity, "payments", 1, queue_id=queue, offset=0)
    cases.tables.log(identity, "audit", 1, queue_id=queue, offset=1)


WAYS: tuple[Callable[[Cases], None], ...] = (
    *(_settled, _in_flight, _waiting, _not_there, _half_done, _stranded, _given_up, _foreign),
    _forged,
)


def every_case(url: str, root: Path) -> tuple[Expected, str]:
    """Write ledgers that hold every way into a verdict; return what is expected and the store.

    The first segment is deleted after writing, as a broker's retention does, and the queues of a
    topic, as Apache's broker does with one that was deleted.
    """
    cases = Cases(url, root)
    identity, queue = cases.new(payments=Verdict.EXPIRED)
    cases.stub(identity, "payments", **cases.send(identity, queue))
    settled, queue_2 = cases.new(payments=Verdict.SETTLED)
    cases.stub(settled, "payments", status=1, **cases.send(settled, queue_2))
    cases.tables.log(settled, "payments", 1)
    filler = cases.store.add("free", bytes(1_000), properties={})
    while filler.commit_log_offset < SEGMENT_SIZE:
        filler = cases.store.add("free", bytes(1_000), properties={})
    cases.expected[f"{filler.commit_log_offset:032X}", ""] = Verdict.UNMANAGED
    # the expired one's queue goes on, so that its beginning is known
    after, _ = cases.new(payments=Verdict.WAITING)
    for way in WAYS:
        way(cases)
    cases.stub(after, "payments", **cases.send(after, queue))
    _, store = cases.write()
    (root / "commitlog" / f"{0:020d}").unlink()
    shutil.rmtree(root / "consumequeue" / DELETED_TOPIC)
    return cases.expected, store


def random_cases(url: str, root: Path, seed: int, count: int) -> str:
    """Write `count` messages in random states, also such as no system should get into."""
    rng = random.Random(seed)
    cases = Cases(url, root)
    moments = [LONG_AGO, NOW - GRACE - timedelta(seconds=1), JUST_NOW, NOW - timedelta(seconds=1)]
    for queue in range(8):
        for group in ("loyalty", "payments"):
            cases.passed(group, queue, rng.randrange(count // 8))
            cases.store.commit(group, f"%RETRY%{group}", queue, rng.randrange(20))
    for number in range(count):
        identity = message_id(number, moment := rng.choice(moments))
        queue, columns = rng.randrange(8), dict[str, Any]()
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            body = rng.choice((BODY,) * 20 + (b"other",))
            columns = cases.send(identity, queue, body, store_time=moment)
        if rng.random() < 0.1:
            columns = {"broker_name": "broker-a", "queue_id": queue, "offset": number}
        if rng.random() < 0.9:
            groups = rng.choice(((), ("payments",), ("loyalty", "payments")))
            columns = columns if rng.random() < 0.9 else {}
            status = rng.choice((0, 0, 1, 1, 2))
            if status == 2 and rng.random() < 0.3:
                columns = {"content": b""}  # a tombstone
            if rng.random() < 0.05:
                columns["given_up_by"] = rng.choice(("payments", "loyalty,payments"))
            if rng.random() < 0.1:
                columns["deliver_time"] = moment + timedelta(minutes=rng.randrange(-5, 5))
            cases.stub(identity, *groups, status=status, create_date=moment, **columns)
        for group in rng.sample(("loyalty", "payments", "audit"), rng.choice((0, 1, 2))):
            _random_attempts(cases, rng, identity, group, queue, moment)
    return cases.write()[1]


def _random_attempts(
    cases: Cases, rng: random.Random, identity: str, group: str, queue: int, moment: Any
) -> None:
    if rng.random() < 0.8:
        lease = rng.choice((None, NOW - timedelta(minutes=1), NOW + timedelta(minutes=1)))
        cases.tables.log(
            identity,
            group,
            rng.choice((0, 1)),
            owner="worker" if lease else None,
            lease_until=lease,
            create_date=moment,
        )
    origin = {"UNIQ_KEY": identity, "RETRY_TOPIC": "orders"}
    times = {"store_time": moment, "reconsume_times": rng.randrange(1, 4)}
    if rng.random() < 0.1:
        cases.store.add(f"%RETRY%{group}", BODY, properties=origin, queue_id=queue, **times)
    if rng.random() < 0.2:
        later = {**origin, "REAL_TOPIC": f"%RETRY%{group}", "DELAY": str(rng.randrange(1, 19))}
        cases.store.add("SCHEDULE_TOPIC_XXXX", BODY, properties=later, **times)
    if rng.random() < 0.2:
        cases.store.add(f"%RETRY%{group}", BODY, properties=origin, queue_id=queue, **times)
    if rng.random() < 0.1:
        cases.store.add(f"%DLQ%{group}", BODY, properties=origin, **times)
