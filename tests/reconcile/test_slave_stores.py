"""What a slave lacks of its master's log, from the files of both; and a slave's store as a log."""

import json
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from bench.reliable_mq_broker import ReliableMQBroker
from sqlalchemy.orm import Session
from tests.reconcile.ledgers import GRACE, JUST_NOW, NOW, StoreWriter, message_id
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import run
from reliable_mq.errors import ConfigurationError, StoreError
from reliable_mq.reconcile.brokers.file_slave import (
    DIFFERS,
    LACKS,
    ON_ITS_WAY,
    SURPLUS,
    SlaveComparison,
    compare_with_slave,
)
from reliable_mq.reconcile.brokers.spark_brokers import named_slaves
from reliable_mq.wire.record import Record

COUNT = 200
SEGMENT_SIZE = 64 * 1024


class Pair:
    """The store of a master with messages over several segments, and a copy of its files."""

    def __init__(self, folder: Path) -> None:
        self.writer = StoreWriter(folder / "master", SEGMENT_SIZE)
        self.slave = folder / "slave"
        self.records: list[Record] = []
        for number in range(COUNT):
            self.send(number, b"%d" % number * 500)

    def send(self, number: int, body: bytes, **more: Any) -> Record:
        self.records.append(self.writer.send(message_id(number), body, queue_id=number % 3, **more))
        return self.records[-1]

    def copy(self) -> None:
        """Let the slave have what the master has."""
        self.writer.write()
        shutil.copytree(self.writer.root, self.slave, dirs_exist_ok=True)

    def compared(self, rows_max: int = 1_000) -> SlaveComparison:
        self.writer.write()
        master = str(self.writer.root)
        return compare_with_slave("b", master, str(self.slave), NOW - GRACE, rows_max)

    def change(self, record: Record, data: bytes) -> None:
        """Write over the begin of a record in the slave's log."""
        base = record.commit_log_offset // SEGMENT_SIZE * SEGMENT_SIZE
        with (self.slave / "commitlog" / f"{base:020d}").open("r+b") as file:
            file.seek(record.commit_log_offset - base)
            file.write(data)

    def erase(self, *records: Record) -> None:
        for record in records:
            self.change(record, bytes(record.size))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    made = Pair(tmp_path)
    made.copy()
    return made


def test_a_slave_with_the_whole_log_lacks_nothing(pair: Pair) -> None:
    found = pair.compared()
    assert found.flaw() is None
    assert (found.counts, found.ranges, found.rows) == ({}, [], [])
    assert found.master_log == found.slave_log
    assert found.master_log[1] > 3 * SEGMENT_SIZE


def test_what_the_master_stored_since_the_slave_went_away_is_lacking(pair: Pair) -> None:
    first = pair.send(900, b"x" * 100_0)
    more = [pair.send(number, b"y" * 30_000) for number in range(901, 907)]

    found = pair.compared()

    assert found.counts == {LACKS: 7}
    assert found.ranges[0].begin == first.commit_log_offset
    assert found.ranges[-1].end == more[-1].commit_log_offset + more[-1].size
    assert sum(each.records for each in found.ranges) == 7
    listed = [dict(zip(("kind", "offset"), row[:2], strict=True)) for row in found.rows]
    assert [each["offset"] for each in listed] == [
        record.commit_log_offset for record in (first, *more)
    ]
    assert f"it lacks 7 records ({sum(r.size for r in (first, *more)):,} bytes)" in str(
        found.flaw()
    )


def test_a_hole_in_the_middle_is_found_with_its_offsets_and_messages(pair: Pair) -> None:
    hole = pair.records[70:73]
    pair.erase(*hole)

    found = pair.compared()

    begin, end = hole[0].commit_log_offset, hole[-1].commit_log_offset + hole[-1].size
    assert [tuple(each) for each in found.ranges] == [(LACKS, begin, end, 3)]
    assert f"from log offset {begin} to {end}" in str(found.flaw())
    kind, offset, _, role, topic, _, identity, *_ = found.rows[0]
    assert (kind, offset, role, topic) == (LACKS, begin, "first", "orders")
    assert identity == message_id(70)


@pytest.mark.parametrize("at", [0, 50, 150])
def test_a_record_with_other_bytes_differs_at_whatever_byte(pair: Pair, at: int) -> None:
    record = pair.records[99]
    base = record.commit_log_offset // SEGMENT_SIZE * SEGMENT_SIZE
    file = pair.slave / "commitlog" / f"{base:020d}"
    data = bytearray(file.read_bytes())
    data[record.commit_log_offset - base + at] ^= 0xFF
    file.write_bytes(data)

    found = pair.compared()

    assert found.counts == {DIFFERS: 1}
    assert found.rows[0][1] == record.commit_log_offset
    assert "it has other bytes for 1 record (" in str(found.flaw())


def test_a_slave_that_began_at_a_later_segment_lacks_what_is_before_it(pair: Pair) -> None:
    for name in ("0" * 20, f"{SEGMENT_SIZE:020d}"):
        (pair.slave / "commitlog" / name).unlink()

    found = pair.compared()

    before = [each for each in pair.records if each.commit_log_offset < 2 * SEGMENT_SIZE]
    assert found.counts == {LACKS: len(before)}
    assert found.slave_log[0] == 2 * SEGMENT_SIZE
    assert found.ranges[0].begin == 0


def test_a_segment_that_is_gone_in_the_middle_is_lacking(pair: Pair) -> None:
    (pair.slave / "commitlog" / f"{SEGMENT_SIZE:020d}").unlink()
    within = [each for each in pair.records if each.commit_log_offset // SEGMENT_SIZE == 1]
    assert pair.compared().counts == {LACKS: len(within)}


def test_a_young_record_is_on_its_way(pair: Pair) -> None:
    pair.send(900, b"young", store_time=JUST_NOW)
    found = pair.compared()
    assert found.counts == {ON_ITS_WAY: 1}
    assert (found.flaw(), found.rows) == (None, [])


def test_messages_that_only_the_slave_has_are_found(tmp_path: Path) -> None:
    """Given a master that lost its last messages, then the slave has them."""
    pair = Pair(tmp_path)
    pair.copy()
    more = [pair.send(number, b"more") for number in (900, 901)]
    pair.copy()
    master = Pair(tmp_path / "other")
    shutil.rmtree(pair.writer.root)
    shutil.copytree(Path(master.writer.write()), pair.writer.root)
    found = compare_with_slave(
        "b", str(pair.writer.root), str(pair.slave), NOW - GRACE, rows_max=10
    )
    assert found.counts == {SURPLUS: 2}
    assert [row[1] for row in found.rows] == [each.commit_log_offset for each in more]
    assert "it has, and the master lacks, 2 records" in str(found.flaw())


def test_a_slave_without_a_message_lacks_all(pair: Pair) -> None:
    shutil.rmtree(pair.slave / "commitlog")
    shutil.rmtree(pair.slave / "consumequeue")
    found = pair.compared(rows_max=5)
    assert found.counts == {LACKS: COUNT}
    assert len(found.rows) == 5, "the list is limited, the count is not"
    assert found.slave_log == (0, 0)


def test_damage_at_the_master_is_no_fault_of_the_slave(pair: Pair) -> None:
    record = pair.records[50]
    pair.writer.write()
    log = pair.writer.root / "commitlog"
    base = record.commit_log_offset // SEGMENT_SIZE * SEGMENT_SIZE
    with (log / f"{base:020d}").open("r+b") as file:
        file.seek(record.commit_log_offset - base)
        file.write(bytes(record.size))
    found = compare_with_slave("b", str(pair.writer.root), str(pair.slave), NOW - GRACE, 10)
    assert found.counts == {}


def test_many_holes_are_counted_and_the_first_are_told(pair: Pair) -> None:
    holes = pair.records[1::2]
    pair.erase(*holes)
    for number in range(1_000, 1_150):
        pair.send(number, b"later")
    found = pair.compared()
    assert found.counts == {LACKS: len(holes) + 150}
    assert len(found.ranges) == 100
    assert "the first from log offset" in str(found.flaw())
    assert found.to_json()["counts"] == {LACKS: 250, DIFFERS: 0, SURPLUS: 0, ON_ITS_WAY: 0}


def test_a_folder_that_is_no_store_is_refused(pair: Pair, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is not a store directory"):
        compare_with_slave("b", str(pair.writer.root), str(tmp_path / "no"), NOW, 1)


def test_a_slave_needs_the_store_of_its_master() -> None:
    assert named_slaves(["/s"], {"a": "/m"}) == [("a", "/s")]
    assert named_slaves(["/s", "/t"], {"": "/m"}) == [("", "/s"), ("", "/t")]
    assert named_slaves(["b=/s"], {"a": "/m", "b": "/n"}) == [("b", "/s")]
    for texts, says in (
        (["c=/s"], "--slave-store c=/s: its master is not given: give --store c="),
        (["/s"], "give NAME=/s, with the name of its master"),
        (["a=/m/../m"], "this is the store of its master"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            named_slaves(texts, {"a": "/m", "b": "/n"})


@contextmanager
def traffic(mq: ReliableMQ) -> Iterator[list[int]]:
    """Order without a pause; give how many orders there are."""
    stopped, ordered = threading.Event(), [0]

    def order() -> None:
        while not stopped.wait(0.01):
            with mq.transaction() as tx:
                tx.send("orders", {"id": ordered[0]})
            ordered[0] += 1

    ordering = threading.Thread(target=order)
    ordering.start()
    try:
        yield ordered
    finally:
        stopped.set()
        ordering.join()


class Reconciled:
    """The command in this process, which has a session of Spark already."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: str) -> None:
        self._capsys, self._words = capsys, words

    def __call__(self, *more: str) -> tuple[int, dict[str, Any]]:
        """Return the exit code, and the summary."""
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run(["reconcile", *self._words, *more])
        printed = self._capsys.readouterr()
        assert printed.out, printed.err
        return int(str(ended.value.code)), json.loads(printed.out)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.processes
@pytest.mark.usefixtures("spark")
def test_the_store_of_a_live_slave_is_judged_and_compared_while_messages_come(
    postgres_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given a pair and an application that orders and consumes without a pause, when a run reads
    the slave's store in place of the master's, then it finds nothing; and a run over both says that
    the slave has what is older than the grace. When the slave was away, it says what it lacks."""
    roles = {"brokerName": "pair"}
    master = ReliableMQBroker(tmp_path / "m", settings={**roles, "brokerRole": "ASYNC_MASTER"})
    with master:
        slave = ReliableMQBroker(
            tmp_path / "s",
            settings={**roles, "brokerRole": "SLAVE", "brokerId": "1"},
            name_servers=master.name_server_address,
        )
        slave.start()
        mq = ReliableMQ("shop", broker=master.name_server_address, database=postgres_url)

        @mq.consumer("orders", group="payments")
        def pay(order: dict[str, int], session: Session) -> None: ...

        mq.create_tables()
        out = str(tmp_path / "out")
        reconciled = Reconciled(
            capsys, "--db", postgres_url, "--out", out, "--grace", "8s", "--json"
        )
        with mq, traffic(mq) as ordered:
            until(lambda: ordered[0] >= 20)
            known, since = ordered[0], time.monotonic()
            until(lambda: time.monotonic() - since > 9)
            until(lambda: any(Path(slave.store, "consumequeue").glob("orders/*/*")))

            pair = ("--store", f"pair={master.store}", "--slave-store", f"pair={slave.store}")
            code, summary = reconciled("--store", f"pair={slave.store}")
            assert code == 0, summary
            assert summary["verdicts"]["settled"] >= known
            code, summary = reconciled(*pair)
            assert code == 0, summary
            (told,) = summary["slaves"]
            assert told["counts"]["lacks"] == told["counts"]["differs"] == 0
            slave.kill()
            known = ordered[0]
            until(lambda: ordered[0] >= known + 20)
            since = time.monotonic()
            until(lambda: time.monotonic() - since > 9)
            code, summary = reconciled(*pair)
        assert code == 2, summary
        (told,) = summary["slaves"]
        assert told["counts"]["lacks"] >= 20
        assert told["ranges"][0]["begin"] == told["slave_log"][1]
        assert "it lacks" in summary["whole"][f"log of slave {slave.store}"]
        rows = Path(told["listed"]).read_text().splitlines()
        assert len(rows) == 1 + told["counts"]["lacks"]
        assert rows[1].startswith(f"pair,{slave.store},lacks,{told['slave_log'][1]},")
