"""The resend scheduler and retention with very much to do, each figure beside its bar.

    python -m bench.resend                          # 10 million stubs: some 15 GB of disk
    python -m bench.resend --large 100000 --due 20000 --seconds 5 --only scan catch-up
scan: looking and claiming among ten thousand and among very many due stubs, in turns.
retention: how long producers' transactions take with retention at work and without, in turns.
takeover: a scheduler that has claimed is killed; when does another one send?
catch-up: very many due stubs through the bundled broker, while new ones come whose relay died.
"""

import argparse
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from sqlalchemy import bindparam, select, text, update

from bench import raw_results
from bench.child_process import LoggedProcess
from bench.page_costs import cost_of
from bench.reliable_mq_broker import ReliableMQBroker
from bench.render import figures_table
from reliable_mq import ReliableMQ
from reliable_mq.confirm.progress import Progress
from reliable_mq.confirm.sql_confirmation import confirmation_of
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.message import Message, MessageQueue, SendResult, SendStatus
from reliable_mq.outbox.resend_policy import ResendPolicy
from reliable_mq.outbox.sql_outbox import SqlOutbox
from reliable_mq.outbox.sql_stubs import SqlStubs
from reliable_mq.outbox.sql_transaction import TransactionScope
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend import thread_scheduler
from reliable_mq.resend.due import ClaimRequest, DueKind
from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.resend.sql_due import SqlDue
from reliable_mq.resend.sql_resending import books_of
from reliable_mq.retention import thread_retention
from reliable_mq.retention.retention import Retention
from reliable_mq.retention.sql_keeping import retention_ledgers
from reliable_mq.testing.local_servers import LocalPostgres
from reliable_mq.watched_time import first_look

TOPICS = 8
SMALL, CLAIMED, CHUNK = 10_000, 100, 500_000
KEEPING = "keep_"
LEASE = 10.0
WAIT_MAX = 120.0
Figure = dict[str, Any]


def figure(what: str, value: float, unit: str, bar: str = "") -> Figure:
    """One line of the table."""
    return {"what": what, "value": round(value, 4), "unit": unit, "bar": bar}


def fill(database: Database, count: int, *, settled: bool = False, logs: bool = False) -> None:
    """Write stubs that are due, or settled long ago, and logs of as many messages without one."""
    stubs, age = database.stubs.name, "40 days" if settled else "1 hour"
    rest = "1, NULL, 'b'" if settled else "0, now() - interval '1 hour', NULL"
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        then = f"now() - interval '{age}' + i * interval '100 us'"
        with database.engine.begin() as connection:
            connection.execute(
                text(
                    f"INSERT INTO {stubs} (message_id, topic, content, status, resend_time,"
                    " broker_name, create_date, update_date)"
                    f" SELECT lpad(i::text, 32, '0'), 'topic' || i % {TOPICS}, 'body', {rest},"
                    f" {then}, {then} FROM generate_series({begin}, {end - 1}) i"
                )
            )
            if logs:
                connection.execute(
                    text(
                        f"INSERT INTO {database.logs.name} (consumer_group, message_id, topic,"
                        ' broker_name, queue_id, "offset", state, attempt, create_date,'
                        " consume_date) SELECT 'g', lpad(i::text, 32, 'f'), 't', 'b', 0, i, 1, 1,"
                        f" {then}, {then} FROM generate_series({begin}, {end - 1}) i"
                    )
                )
    with database.engine.connect() as connection:
        vacuum = connection.execution_options(isolation_level="AUTOCOMMIT")
        for name in (stubs, database.logs.name):
            vacuum.execute(text(f"VACUUM ANALYZE {name}"))
        vacuum.execute(text("CHECKPOINT"))


def due_of(database: Database) -> SqlDue:
    """Return the claims of a database."""
    stubs, confirmation = SqlStubs(database.engine, database.stubs), confirmation_of(database)
    return SqlDue(stubs, database.logs, confirmation)


def timed(work: Callable[[], object]) -> float:
    """Return how many milliseconds work took."""
    began = time.perf_counter()
    work()
    return (time.perf_counter() - began) * 1000


def scan(url: str, large: int, rounds: int = 40) -> list[Figure]:
    """Look and claim among few and among many due stubs, in turns."""
    databases = {
        count: Database(url, prefix=f"scan{count}_", connections=2) for count in (SMALL, large)
    }
    for count, database in databases.items():
        database.create_tables()
        fill(database, count)
    times: dict[tuple[str, int], list[float]] = {}
    for number in range(rounds):
        for count, database in databases.items():
            due, asked = due_of(database), claim_request(number)
            for what, work in (("look", due.agenda), ("claim", lambda: due.claim(asked))):  # noqa: B023
                if number:  # the first one warms up
                    times.setdefault((what, count), []).append(timed(work))
                else:
                    work()
    figures = []
    for what in ("look", "claim"):
        few, many = (statistics.median(times[what, count]) for count in (SMALL, large))
        figures += [
            figure(f"{what} among {SMALL:,} due stubs", few, "ms"),
            figure(f"{what} among {large:,}", many, "ms"),
            figure(f"{what}, ratio", many / few, "", "0.7 to 1.3"),
            *(pages(what, count, database, rounds) for count, database in databases.items()),
        ]
    return figures


def pages(what: str, count: int, database: Database, number: int) -> Figure:
    """Return how many pages looking or claiming touches, and the indexes that it goes by."""
    due, asked = due_of(database), claim_request(number)
    work = due.agenda if what == "look" else lambda: due.claim(asked)
    cost = cost_of(database.engine, work)
    ways = ", ".join(way.removeprefix(f"{database.stubs.name}_") for way in cost.ways)
    return figure(f"{what} among {count:,}, by {ways}", cost.pages, "pages")


def claim_request(number: int) -> ClaimRequest:
    """Return a request of a scheduler of its own for a hundred stubs, now."""
    return ClaimRequest(
        kind=DueKind.UNSENT,
        topic=f"topic{number % TOPICS}",
        now=time.time(),
        owner=f"bench-{number}",
        lease=86_400.0,
        limit=CLAIMED,
        count_max=16,
    )


class Nobody:
    """Takes committed stubs over and does nothing: only their transactions are measured."""

    def accept_committed(self, stubs: Sequence[Stub]) -> None: ...


def retention(url: str, seconds: float, turns: int = 6, threads: int = 4) -> list[Figure]:
    """Measure producers with and without retention at work, in turns.

    It works in a process of its own, as beside the scheduler of `reliable-mq resend`.
    """
    database = Database(url, prefix=KEEPING, connections=threads + 4)
    database.create_tables()
    fill(database, int(200_000 * max(seconds, 1.0) / 10), settled=True, logs=True)
    with database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE keep_orders (id bigserial PRIMARY KEY, note text)"))
    stubs = SqlStubs(database.engine, database.stubs)
    outbox = SqlOutbox(
        stubs, Nobody(), owner="bench", lease=3600.0, groups_of_topic=lambda _topic, _tag: ()
    )

    def place(until: float) -> list[float]:
        taken = []
        while time.perf_counter() < until:
            began = time.perf_counter()
            with TransactionScope(outbox, database.session, database.async_session, None) as tx:
                tx.session.execute(text("INSERT INTO keep_orders (note) VALUES ('an order')"))
                tx.send("orders", {"id": 1}, key=1)
            taken.append((time.perf_counter() - began) * 1000)
        return taken

    p99: dict[bool, list[float]] = {False: [], True: []}
    removed = 0
    for turn in range(turns * 2):
        is_on, before = turn % 2 == 1, rows_of(database)
        with keeping(url) if is_on else nullcontext(), ThreadPoolExecutor(threads) as pool:
            until = time.perf_counter() + seconds
            runs = list(pool.map(place, [until] * threads))
        placed = sum(map(len, runs))
        removed += before + placed - rows_of(database) if is_on else 0
        if turn > 1:
            p99[is_on].append(statistics.quantiles([t for run in runs for t in run], n=100)[98])
    off, on = statistics.median(p99[False]), statistics.median(p99[True])
    return [
        figure("producers' p99 without retention", off, "ms"),
        figure("producers' p99 with retention", on, "ms"),
        figure("retention, ratio", on / off, "", "1.1 at most"),
        figure("rows removed meanwhile", removed / (turns * seconds), "stubs/s"),
    ]


def rows_of(database: Database) -> int:
    """Return how many stubs there are."""
    with database.engine.begin() as connection:
        return int(connection.scalar(text(f"SELECT count(*) FROM {database.stubs.name}")) or 0)


@contextmanager
def keeping(url: str) -> Iterator[None]:
    """Let retention work in a process of its own while the block runs."""
    spawn = multiprocessing.get_context("spawn")
    began, stopped = spawn.Event(), spawn.Event()
    child = spawn.Process(target=keep, args=(url, began, stopped), daemon=True)
    child.start()
    began.wait()
    yield
    stopped.set()
    child.join()


def keep(url: str, began: Event, stopped: Event) -> None:
    """Remove what is old, by windows like those of the settings, until it is enough."""
    database, week = Database(url, prefix=KEEPING, connections=1), 7 * 86_400.0
    book, look, now = retention_ledgers(database), database.clock.reading, time.time()
    book.take_duty(now, "bench", 60.0)  # as if somebody had watched the clock until now
    book.note_watched(first_look(look(), None, unwatched_max=0.0), "bench", now + 60.0)
    began.set()
    keeper = Retention(book, owner="bench", look=look, stub_retention=week, log_retention=4 * week)
    thread_retention.run_forever(keeper, stopped)


class Arrivals:
    """A broker in memory that notes when what arrived."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def send_many(self, messages: Sequence[Message]) -> list[SendResult | Exception]:
        self.times += [time.monotonic()] * len(messages)
        return [
            SendResult(
                status=SendStatus.SEND_OK,
                message_id=each.message_id,
                offset_message_id="",
                queue=MessageQueue(each.topic, "b", 0),
                queue_offset=0,
            )
            for each in messages
        ]

    def consumer_progress(self, group: str, topic: str) -> Progress:
        raise NotImplementedError


VICTIM = """
import sys, time
from bench.resend import CLAIMED, LEASE, Database, claim_request, due_of
import msgspec
database = Database(sys.argv[1], prefix="dead_", connections=1)
asked = msgspec.structs.replace(claim_request(0), owner="dead", lease=LEASE)
print("claimed", len(due_of(database).claim(asked).stubs), flush=True)
time.sleep(600)
"""


def takeover(url: str, directory: Path) -> list[Figure]:
    """Kill a scheduler that has claimed; measure until another one has sent all."""
    database = Database(url, prefix="dead_", connections=4)
    database.create_tables()
    fill(database, CLAIMED * TOPICS)
    with database.engine.begin() as connection:  # only what the victim claims is due
        connection.execute(text("DELETE FROM dead_message_stub WHERE topic <> 'topic0'"))
    victim = LoggedProcess((sys.executable, "-c", VICTIM, url), directory / "victim.log")
    victim.wait_for(f"^claimed {CLAIMED}$", 60)
    began = time.monotonic()
    victim.kill()
    arrivals, stopped = Arrivals(), threading.Event()
    other = Scheduler(
        books_of(database),
        arrivals,
        ResendPolicy(),
        owner="other",
        lease=LEASE,
        batch=500,
    )
    thread = threading.Thread(
        target=thread_scheduler.run_forever, args=(other, stopped), kwargs={"interval": 1.0}
    )
    thread.start()
    while len(arrivals.times) < CLAIMED and time.monotonic() < began + WAIT_MAX:
        time.sleep(0.01)
    stopped.set()
    thread.join()
    first, last = arrivals.times[0] - began, arrivals.times[-1] - began
    bar = f"{LEASE + 1:g} at most"
    return [
        figure(f"another scheduler's first send, lease {LEASE:g} s", first, "s", bar),
        figure("and the last of a hundred", last, "s"),
    ]


def catch_up(url: str, count: int, directory: Path) -> list[Figure]:
    """Send very many due stubs by the bundled broker, and new ones that come meanwhile."""
    with ReliableMQBroker(directory / "broker") as broker:
        mq = ReliableMQ(
            "bench", broker=broker.name_server_address, database=url, table_prefix="late_"
        )
        mq.create_tables()
        fill(mq.database, count)
        stopped = threading.Event()
        thread = threading.Thread(target=mq.resend_forever, args=(stopped,))
        began = time.monotonic()
        thread.start()
        table = mq.database.stubs
        waits: list[float] = []
        left = select(table.c.seq).where(table.c.status == 0).limit(1)
        while True:
            waits.append(new_stub(mq.database, len(waits)))
            with mq.database.engine.begin() as connection:
                if connection.execute(left).first() is None:
                    break
        took = time.monotonic() - began
        stopped.set()
        thread.join()
        mq.close()
    waits.sort()
    return [
        figure(f"{count:,} due stubs sent", count / took, "stubs/s"),
        figure("a new stub whose relay died, median", waits[len(waits) // 2], "s"),
        figure("a new stub whose relay died, longest", waits[-1], "s"),
    ]


def new_stub(database: Database, number: int) -> float:
    """Write a stub that is due now, and return how many seconds passed until it was sent."""
    now, table = time.time(), database.stubs
    stub = Stub(seq=0, message_id=f"new{number:029}", topic="topic0", content=b"body")
    with database.engine.begin() as connection:
        SqlStubs(database.engine, table).insert(connection, [stub], "dead", now, 0.0)
        this = update(table).where(table.c.message_id == bindparam("id"))
        connection.execute(
            this.values(resend_time=bindparam("at")),
            {"id": stub.message_id, "at": utc_datetime(now)},
        )
    began = time.monotonic()
    waiting = select(table.c.seq).where(table.c.message_id == stub.message_id, table.c.status == 0)
    while time.monotonic() < began + WAIT_MAX:
        with database.engine.begin() as connection:
            if connection.execute(waiting).first() is None:
                break
        time.sleep(0.01)
    return time.monotonic() - began


def main() -> int:
    parts = ("scan", "retention", "takeover", "catch-up")
    parser = argparse.ArgumentParser(description="Resend and retention with very much to do.")
    parser.add_argument("--large", type=int, default=10_000_000, help="stubs of the large scan")
    parser.add_argument("--due", type=int, default=1_000_000, help="stubs to catch up with")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each turn of retention")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="reliable-mq-resend-"))
    directory.chmod(0o755)  # PostgreSQL runs as another user when we are root
    server = LocalPostgres(directory / "postgres")
    server.start()
    figures: list[Figure] = []
    try:
        if "scan" in options.only:
            figures += scan(server.url, options.large)
        if "retention" in options.only:
            figures += retention(server.url, options.seconds)
        if "takeover" in options.only:
            figures += takeover(server.url, directory)
        if "catch-up" in options.only:
            figures += catch_up(server.url, options.due, directory)
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
    name = "retention" if options.only == ["retention"] else "resend"
    results = raw_results.of_now(name, vars(options), figures)
    print(f"raw results: {raw_results.write(results)}\n{figures_table(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
