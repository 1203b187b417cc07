"""How long the pages of the console take in a large database, and what the console needs meanwhile.

Fills PostgreSQL with N stubs (`console_data`), starts `reliable-mq console`, and asks every page M
times, one after another: each list with its filters, a page deep inside, the page of a message, a
search of each kind, the overview, the heads of CSV and JSON. Then the memory, and the processor
time of a minute with nobody connected, and of one with an open overview. At the end, 100,000 stubs
are sent again at a rate.

    python -m bench.console_pages --stubs 10000000 --findings 1000000 --keep /tmp/console
    python -m bench.console_pages --keep /tmp/console --plans --only stubs
"""

import argparse
import contextlib
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import psycopg

from bench import raw_results
from bench.child_process import LoggedProcess
from bench.console_backends import Backends
from bench.console_data import LOADING, address_of, fill, park_again, settings_for, size_gib
from bench.console_tables import console_table
from bench.orders_end_to_end import processor_seconds
from bench.quiet import resident_mib, used_seconds
from bench.reliable_mq_broker import COMMAND, ReliableMQBroker
from reliable_mq.testing.local_servers import LocalPostgres

APPLICATION = "bench.console_app:mq"
READY_SECONDS = 60.0
LIVE_SECONDS = 5.0
PAGE_BAR_MS, SEARCH_BAR_MS, MEMORY_BAR_MIB, IDLE_BAR_PERCENT = 300.0, 1000.0, 120.0, 0.5
EXPORT_BYTES = 20_000
WORK_SECONDS_MAX = 300.0
SLOW_STATEMENT_MS = 20

LISTS: Mapping[str, Sequence[str]] = {
    "stubs": (
        *("", "escalated=yes", "status=unconfirmed", "status=confirmed", "status=voided"),
        *("topic=orders", "topic=returns", "topic=legacy", "topic=none", "key={key}"),
        *("correlation_id={correlation}", "correlation_id=nightly-import"),
        *("group=billing", "group=billing&status=unconfirmed", "since=-1h", "until=-5d"),
        *("since=-6d&until=-5d&topic=returns", "tag=none", "ordering_key=customer-9"),
        *("note_holds=answer", "note_holds=none", "escalated=yes&topic=payments&since=-1d"),
    ),
    "consume-logs": (
        *("", "group=billing", "group=stock", "group=none", "topic=payments", "topic=returns"),
        *("state=received", "state=consumed", "failed=yes", "since=-1h", "until=-5d"),
        *("message={message}", "group=stock&failed=yes", "state=received&failed=yes"),
    ),
    "escalations": (
        *("", "open=yes", "no_dead_letters=yes", "open=yes&no_dead_letters=yes"),
        *("kind=stuck", "topic=orders", "group=billing", "since=-1h", "message={message}"),
    ),
    "audit": (
        *("", "by=ada", "by=nobody", "action=retry", "holds=nothing", "since=-1d", "until=-5d"),
        *("changed=yes", "work={work}", "work=none"),
    ),
    "runs": ("", "findings=yes", "since=-7d"),
    "findings": (
        *("", "verdict=lost%20by%20the%20broker", "verdict=stuck", "run=run-0026", "topic=returns"),
        *("group=billing", "group=none", "message={message}", "run=run-0027&not_in=run-0026"),
        "run=run-0026&verdict=stuck",
    ),
    "verdicts": ("", "run=run-0026", "run=run-0027"),
    "verdict-days": ("", "run=run-0026", "run=run-0027"),
    "groups": ("",),
    "topics": ("",),
    "brokers": ("",),
    "periodic": ("",),
    "dead-letters": ("",),
}


class Shop:
    """What is asked: a console and what it reads.

    Args:
        url: of the console.
        database: the URL of the database.
    """

    def __init__(self, url: str, database: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=30.0)
        self.database = psycopg.connect(address_of(database), autocommit=True)
        middle = "SELECT message_id, message_key FROM rmq_message_stub WHERE seq >= %s LIMIT 1"
        (last,) = self.row("SELECT max(seq) FROM rmq_message_stub")
        self.message, self.key = self.row(middle, (last // 3,))
        found = self.row("SELECT message_id FROM rmq_reconcile_finding LIMIT 1")
        self.with_finding = found[0]
        self.names = {"key": self.key, "message": self.message}
        self.names["correlation"] = f"request-{last // 150}"
        self.names["work"] = self.row("SELECT run_id FROM rmq_audit ORDER BY seq LIMIT 1")[0]

    def row(self, statement: str, values: Sequence[Any] = ()) -> Any:
        row = self.database.execute(statement.encode(), values).fetchone()
        assert row is not None
        return row

    def close(self) -> None:
        self.client.close()
        self.database.close()

    def get(self, path: str) -> float:
        """Ask for a page; return the milliseconds."""
        begin = time.perf_counter()
        with self.client.stream("GET", path) as answer:
            size = 0
            for part in answer.iter_bytes():
                size += len(part)
                if "format=" in path and size > EXPORT_BYTES:
                    break
        took = (time.perf_counter() - begin) * 1000
        if answer.status_code not in (200, 303):
            raise RuntimeError(f"{answer.status_code} {path}")
        return took

    def deep(self, kind: str, query: str) -> str:
        """Return the address of a page some pages inside a list, "": it has one page."""
        path = f"/{kind}?limit=500&{query}"
        for _ in range(4):
            found = re.search(r'rel="next" href="([^"]*)"', self.client.get(path).text)
            if found is None:
                return ""
            path = unescape(found[1])
        return path

    def addresses(self) -> Iterator[tuple[str, str, float]]:
        """Yield the name, the address and the bar of each page."""
        yield "overview", "/", PAGE_BAR_MS
        yield "overview, live part", "/overview/live", PAGE_BAR_MS
        for kind, queries in LISTS.items():
            for query in queries:
                asked = query.format(**self.names)
                yield f"/{kind}?{query}".rstrip("?"), f"/{kind}?{asked}", PAGE_BAR_MS
        for kind, query in (("stubs", ""), ("consume-logs", ""), ("audit", ""), ("findings", "")):
            path = self.deep(kind, query)
            if path:
                yield f"/{kind}, 2,000 rows inside", path, PAGE_BAR_MS
        for kind in ("stubs", "consume-logs", "findings"):
            for form in ("csv", "json"):
                yield f"/{kind}, head of {form}", f"/{kind}?format={form}", PAGE_BAR_MS
        yield "a message", f"/message?id={self.message}", PAGE_BAR_MS
        yield "a message with a finding", f"/message?id={self.with_finding}", PAGE_BAR_MS
        searches = {
            "a message id": self.message,
            "a business key": self.key,
            "a correlation id": self.names["correlation"],
            "a correlation id of a million": "nightly-import",
            "a topic": "order",
            "a group": "billing",
            "nothing": "no-such-key",
            "an ordering key": "customer-9",
            "an offset id": "7F00000100002A9F0000000000000000",
        }
        for name, text in searches.items():
            yield f"search for {name}", f"/find?{urlencode({'q': text})}", SEARCH_BAR_MS


def measured(shop: Shop, times: int, only: str) -> Iterator[dict[str, Any]]:
    """Ask every page; yield its p50, p95 and max in milliseconds."""
    for name, path, bar in shop.addresses():
        if only not in name:
            continue
        first = shop.get(path)
        took = sorted(shop.get(path) for _ in range(times))
        p95 = took[min(len(took) - 1, int(len(took) * 0.95))]
        figures = {"p50_ms": round(statistics.median(took), 1), "p95_ms": round(p95, 1)}
        figures |= {"max_ms": round(took[-1], 1), "first_ms": round(first, 1)}
        print(f"{figures['p95_ms']:8.1f} {figures['first_ms']:8.1f}  {name}", flush=True)
        yield {"what": name, **figures, "bar_ms": bar}


def figure(what: str, value: float, unit: str, bar: str = "") -> dict[str, Any]:
    """Return one figure that is no page."""
    print(f"{what}: {value:.3f} {unit}", flush=True)
    return {"what": what, "value": round(value, 3), "unit": unit, "bar": bar}


def idle(shop: Shop, console: LoggedProcess, seconds: float) -> Iterator[dict[str, Any]]:
    """Yield the processor time of the console without a visitor, and with one open overview."""
    pid = console.child.pid
    backends = Backends(pid, shop.database)
    for what, is_open in (("nobody connected", False), ("one open overview", True)):
        used, served = used_seconds([pid]), backends.seconds()
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            if is_open:
                shop.get("/overview/live")
            time.sleep(min(LIVE_SECONDS, max(0.0, end - now)))
        percent = (used_seconds([pid]) - used) / seconds * 100
        bar = "" if is_open else f"< {IDLE_BAR_PERCENT}"
        yield figure(f"processor, {what}", percent, "% of a core", bar)
        percent = (backends.seconds() - served) / seconds * 100
        yield figure(f"PostgreSQL's for it, {what}", percent, "% of a core", bar)


def bulk(
    shop: Shop, console: LoggedProcess, server: LocalPostgres, rate: int
) -> Iterator[dict[str, Any]]:
    """Send all stubs again that wait for a person; yield what it took."""
    token = _field(shop.client.get("/stubs").text, "token")
    chosen = {"token": token, "query": "escalated=yes", "scope": "all", "deed": "stub-retry"}
    begin = time.perf_counter()
    preview = shop.client.post("/do", data=chosen).text
    yield figure("preview of the bulk retry", time.perf_counter() - begin, "s")
    used, started = (used_seconds([console.child.pid]), processor_seconds(server)), time.monotonic()
    form = {name: _field(preview, name) for name in ("token", "sealed")}
    answer = shop.client.post("/do/start", data={**form, "why": "bench", "rate": str(rate)})
    place, looks, counts = answer.headers["location"], [0.0], {}
    while time.monotonic() - started < WORK_SECONDS_MAX:
        looks.append(shop.get(f"{place}/live"))
        work = shop.client.get(f"{place}?format=json").json()
        counts = work["counts"]
        if work["state"] != "running":
            break
        time.sleep(1.0)
    seconds = time.monotonic() - started
    yield figure("bulk retry, stubs done", counts["done"], "stubs")
    (left,) = shop.row(
        "SELECT count(*) FROM rmq_message_stub WHERE status = 0 AND resend_time IS NULL"
    )
    yield figure("bulk retry, stubs left", left, "stubs", "0")
    yield figure("bulk retry, its rate", counts["done"] / seconds, "a second", f"<= {rate:,}")
    yield figure("its progress page, slowest", max(looks), "ms", f"< {PAGE_BAR_MS:g}")
    console_seconds = used_seconds([console.child.pid]) - used[0]
    yield figure("bulk retry, the console's processor time", console_seconds, "s")
    yield figure("bulk retry, PostgreSQL's", processor_seconds(server) - used[1], "s")


def _field(page: str, name: str) -> str:
    found = re.search(rf'name="{name}" value="([^"]*)"', page)
    assert found is not None, name
    return unescape(found[1])


@contextlib.contextmanager
def running(directory: Path, options: argparse.Namespace) -> Iterator[Any]:
    """Start PostgreSQL (and fill it, once), a broker and a console."""
    with contextlib.ExitStack() as stack:
        server = LocalPostgres(directory / "postgres")
        server.start()
        stack.callback(server.stop)
        filled = directory / "filled"
        if not filled.exists():
            settings_for(server.url, {**LOADING})
            server.restart()
            begin = time.perf_counter()
            fill(server.url, options.stubs, options.findings)
            filled.write_text(f"{time.perf_counter() - begin:.0f} s\n")
            settings_for(server.url, dict.fromkeys(LOADING))
            server.restart()
        elif not options.only:
            park_again(server.url)
        print(f"{filled.read_text().strip()} to fill, {size_gib(directory):.1f} GiB", flush=True)
        broker = stack.enter_context(ReliableMQBroker(directory / "broker"))
        environment = {
            "RELIABLE_MQ_DATABASE": server.url,
            "RELIABLE_MQ_BROKER": broker.name_server_address,
        }
        console = LoggedProcess(
            (*COMMAND, "console", "--app", APPLICATION, "--port", "0"),
            directory / "console.log",
            environment=environment,
        )
        stack.callback(console.stop)
        url = console.wait_for(r"^ready console=(\S+)$", READY_SECONDS)[1]
        shop = Shop(url, server.url)
        stack.callback(shop.close)
        yield server, console, shop


@contextlib.contextmanager
def slow_plans(server: LocalPostgres, directory: Path) -> Iterator[None]:
    """Let PostgreSQL log the plan of each slow statement; print them at the end."""
    module = {
        "session_preload_libraries": "auto_explain",
        "auto_explain.log_min_duration": str(SLOW_STATEMENT_MS),
        "auto_explain.log_analyze": "on",
        "auto_explain.log_buffers": "on",
    }
    settings_for(server.url, dict(module))
    with psycopg.connect(address_of(server.url), autocommit=True) as connection:
        connection.execute("SELECT pg_reload_conf()")
    log = directory / "postgres" / "postgresql.log"
    begin = log.stat().st_size
    try:
        yield
    finally:
        settings_for(server.url, dict.fromkeys(module))
        print(log.read_bytes()[begin:].decode(errors="replace"))


def measure(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure everything, or the pages whose name holds a text."""
    with running(directory, options) as (server, console, shop):
        plans = slow_plans(server, directory) if options.plans else contextlib.nullcontext()
        with plans:
            found = list(measured(shop, options.times, options.only))
        if options.only:
            return found
        memory = resident_mib(console.child.pid)
        found.append(figure("memory after all pages", memory, "MiB", f"< {MEMORY_BAR_MIB:g}"))
        found += idle(shop, console, options.idle)
        if options.rate:
            found += bulk(shop, console, server, options.rate)
        memory = resident_mib(console.child.pid)
        found.append(figure("memory at the end", memory, "MiB", f"< {MEMORY_BAR_MIB:g}"))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="The console's pages in a large database.")
    parser.add_argument("--stubs", type=int, default=10_000_000)
    parser.add_argument("--findings", type=int, default=1_000_000)
    parser.add_argument("--times", type=int, default=20, help="how often each page is asked")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds of each idle figure")
    parser.add_argument("--rate", type=int, default=5_000, help="of the bulk retry; 0: without it")
    parser.add_argument("--only", default="", help="only pages whose name holds this")
    parser.add_argument("--plans", action="store_true", help="print the plans of slow statements")
    parser.add_argument("--keep", type=Path, help="a directory that is kept and used again")
    options = parser.parse_args()
    directory = options.keep or Path(tempfile.mkdtemp(prefix="reliable-mq-console-"))
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o755)  # PostgreSQL runs as another user when we are root
    found = measure(directory, options)
    if options.keep is None:
        shutil.rmtree(directory)
    if options.only:
        return 0
    settings = {name: value for name, value in vars(options).items() if name != "keep"}
    results = raw_results.of_now("console-pages", settings, found)
    print(f"raw results: {raw_results.write(results)}\n{console_table(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
