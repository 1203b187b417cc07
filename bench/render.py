"""Make the tables of docs/evidence/performance*.md from the newest raw results; prose stays.

Results that a newer one replaces are removed.

A table stands between `<!-- table NAME -->` and `<!-- end NAME -->`.

    python -m bench.render [--check]
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench import raw_results
from bench.console_tables import console_table
from bench.curve_table import curves_table
from bench.sdk_tables import kill_sdk_table, sdk_table
from bench.send_tables import apart_table, send_table
from bench.table_text import OURS, figure_text, median_of, origin_text, table_text

PAGES = sorted((Path(__file__).parent.parent / "docs" / "evidence").glob("performance*.md"))
OFFICIAL, AT_APACHES = "rocketmq-python-client", "ours, Apache's broker"
NATS, SYNCED, UNSYNCED = "nats-py", "ours, fsync", "ours, ASYNC_FLUSH"
CLIENT_BARS: tuple[tuple[str, str, tuple[str, ...], str, float], ...] = (
    ("one thread", OFFICIAL, ("one thread",), AT_APACHES, 6.0),
    ("64 in flight", OFFICIAL, ("16 threads", "64 futures"), AT_APACHES, 10.0),
    ("consumed", OFFICIAL, ("consumed",), AT_APACHES, 20.0),
    ("one at a time", NATS, ("one at a time",), SYNCED, 0.5),
    ("64 in flight", NATS, ("64 in flight",), SYNCED, 0.8),
    ("consumed", NATS, ("consumed",), SYNCED, 1.5),
    ("one at a time", NATS, ("one at a time",), UNSYNCED, 1.0),
    ("64 in flight", NATS, ("64 in flight",), UNSYNCED, 1.0),
    ("consumed", NATS, ("consumed",), UNSYNCED, 1.0),
    ("consumed", NATS, ("consumed by push",), UNSYNCED, 0.0),
)
"""What ours does, the rival, its ways to do that, where ours does, the least ratio; 0: no bar."""
SMALLEST_SHARE = 0.005  # of the processor time; less is left out


def consume_table(results: dict[str, Any]) -> str:
    """Medians of the rounds of each broker, and of the ratio in each turn."""
    rows = [("broker", "msg/s consumed", "its processor time a message, us")]
    rounds = results["rounds"]
    for broker in dict.fromkeys(each["broker"] for each in rounds):
        of_broker = [each for each in rounds if each["broker"] == broker]
        speed, used = median_of(of_broker, "per_second"), median_of(of_broker, "broker_us")
        rows.append((broker, figure_text(speed, ",.0f"), figure_text(used, ".1f")))
    ours = {each["run"]: each["per_second"] for each in rounds if each["broker"] == OURS}
    theirs = {each["run"]: each["per_second"] for each in rounds if each["broker"] != OURS}
    ratio = median(ours[run] / theirs[run] for run in ours)
    rows.append(("ratio, median of the turns", figure_text(ratio, ".2f"), ""))
    return table_text(rows) + origin_text(results)


def kill_table(results: dict[str, Any]) -> str:
    """One line per run of `kill_broker`."""
    rows = [
        ("kills", "client", "acknowledged", "stored", "broken promises", "restart s, median", "max")
    ]
    for each in results["rounds"]:
        restarts = each["restart_seconds"]
        rows.append(
            (
                str(each["kills"]),
                each["client"],
                f"{each['acknowledged']:,}",
                f"{each['stored']:,}",
                str(len(each["violations"])),
                f"{median(restarts):.2f}",
                f"{max(restarts):.2f}",
            )
        )
    return table_text(rows) + origin_text(results)


def kill_pair_table(results: dict[str, Any]) -> str:
    """One line per run of `kill_pair`."""
    rows = [
        (
            *("SIGKILL of", "kills", "client", "acknowledged", "stored", "broken promises"),
            *("served by the slave after s, median", "max"),
        )
    ]
    for each in results["rounds"]:
        served = each["served_seconds"]
        rows.append(
            (
                each["victim"],
                str(each["kills"]),
                each["client"],
                f"{each['acknowledged']:,}",
                f"{each['stored']:,}",
                str(len(each["violations"])),
                figure_text(median(served) if served else None, ".2f"),
                figure_text(max(served, default=None), ".2f"),
            )
        )
    return table_text(rows) + origin_text(results)


def orders_table(results: dict[str, Any]) -> str:
    """Orders a second, and where the processor time of the last run went."""
    runs = [("orders", "orders/s, both effects committed", "placed/s", "resends", "wrong")]
    for each in results["rounds"]:
        speeds = (f"{each['orders_per_second']:,.0f}", f"{each['placed_per_second']:,.0f}")
        runs.append((f"{each['orders']:,}", *speeds, str(each["resends"]), str(len(each["wrong"]))))
    shares = [("station", "processor seconds", "share")]
    used = results["rounds"][-1]["processor_seconds"]
    total = sum(used.values()) or 1.0
    for name, seconds in used.items():
        if seconds / total >= SMALLEST_SHARE:
            shares.append((name, f"{seconds:.2f}", f"{seconds / total:.0%}"))
    return f"{table_text(runs)}\n{table_text(shares)}{origin_text(results)}"


FLOW_BARS = {"one": ">= 0.6", "batch": ">= 0.85"}
RIVAL_BARS = {"one": ">= 3"}


def flow_table(results: dict[str, Any]) -> str:
    """Medians of every flow, and what of the flow without messages each one reaches."""
    rounds = results["rounds"]

    def speeds(flow: str) -> list[float]:
        these = [each for each in rounds if each["flow"] == flow]
        return [each["orders_per_second"] for each in these if "orders_per_second" in each]

    rows = [("flow", "orders/s, effect committed", "of plain", "bar", "idle p50 ms", "idle p99 ms")]
    for flow in dict.fromkeys(each["flow"] for each in rounds):
        turns = speeds(flow)
        # Each turn is compared with its own: the machine has moods.
        share = median(ours / plain for ours, plain in zip(turns, speeds("plain"), strict=True))
        idle = [each for each in rounds if each["flow"] == flow and "p50_ms" in each]
        times = (median_of(idle, "p50_ms"), median_of(idle, "p99_ms"))
        figures = (figure_text(each, ".1f") for each in times)
        bar = FLOW_BARS.get(flow, "")
        rows.append((flow, f"{median(turns):,.0f}", f"{share:.2f}", bar, *figures))
    timed = [each for each in rounds if "processor_ms" in each]
    flows = dict.fromkeys(each["flow"] for each in timed)
    used = [("processor ms for each order", *flows)]
    for name in timed[-1]["processor_ms"]:
        cells = [
            [each["processor_ms"].get(name, 0.0) for each in timed if each["flow"] == flow]
            for flow in flows
        ]
        used.append((name, *(format(median(each), ".2f") for each in cells)))
    if "effects" in timed[-1]["processor_ms"]:  # earlier results lack a process of `plain`
        wholes = (
            [sum(each["processor_ms"].values()) for each in timed if each["flow"] == flow]
            for flow in flows
        )
        used.append(("all", *(format(median(each), ".2f") for each in wholes)))
    return f"{table_text(rows)}\n{table_text(used)}{origin_text(results)}"


def rival_table(results: dict[str, Any]) -> str:
    """Medians of the rounds of each side, and how many times the rival's speed ours is."""
    rounds = results["rounds"]
    rows = [("worker", "deferred/s", "worked/s", "of procrastinate's", "bar")]
    theirs = [each["worked"] for each in rounds if each["side"] == "procrastinate"]
    for side in dict.fromkeys(each["side"] for each in rounds):
        these = [each for each in rounds if each["side"] == side]
        worked = [each["worked"] for each in these]
        # Each turn is compared with its own: the machine has moods.
        ratio = median(ours / rival for ours, rival in zip(worked, theirs, strict=True))
        is_ours = side != "procrastinate"
        deferred, speed = (
            figure_text(median_of(these, of), ",.0f") for of in ("deferred", "worked")
        )
        label = f"reliable_mq, {side}" if is_ours else side
        ratio_text = figure_text(ratio, ".2f") if is_ours else ""
        rows.append((label, deferred, speed, ratio_text, RIVAL_BARS.get(side, "")))
    return table_text(rows) + origin_text(results)


def clients_table(results: dict[str, Any]) -> str:
    """One line per bar: medians of the rounds, the rival's best way, the median of the ratios."""
    rounds: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in results["rounds"]:
        rounds.setdefault((each["side"], each["what"]), []).append(each)
    head = ("what", "rival", "msg/s", "its us", "ours", "msg/s", "its us", "ratio", "bar")
    rows: list[tuple[str, ...]] = [head]
    for what, rival, ways, side, bar in CLIENT_BARS:
        ours = rounds.get((side, what), [])
        of_ways = [rounds[rival, way] for way in ways if (rival, way) in rounds]
        if not ours or not of_ways:
            continue
        theirs = max(of_ways, key=lambda these: median_of(these, "per_second") or 0.0)
        pairs = zip(ours, theirs, strict=True)
        ratio = median(mine["per_second"] / its["per_second"] for mine, its in pairs)
        figures = [
            figure_text(median_of(these, name), ",.0f")
            for these in (theirs, ours)
            for name in ("per_second", "client_us")
        ]
        name = f"{rival}, {theirs[0]['what']}"
        bar_text = f">= {bar:g}" if bar else ""
        rows.append((what, name, *figures[:2], side, *figures[2:], f"{ratio:.2f}", bar_text))
    return table_text(rows) + origin_text(results)


def scale_table(results: dict[str, Any]) -> str:
    """One line per figure, Apache's beside ours where there is one."""
    rows = [("what", "Apache", "ours", "ratio", "unit")]
    figures = results["rounds"]
    for what in dict.fromkeys(each["what"] for each in figures):
        of_both = [each for each in figures if each["what"] == what]
        ours = median_of([each for each in of_both if each["broker"] == OURS], "value")
        theirs = median_of([each for each in of_both if each["broker"] != OURS], "value")
        ratio = ours / theirs if ours is not None and theirs else None
        values = (figure_text(theirs, ",.3g"), figure_text(ours, ",.3g"), figure_text(ratio, ".2f"))
        rows.append((what, *values, of_both[0]["unit"]))
    return table_text(rows) + origin_text(results)


def figures_table(results: dict[str, Any]) -> str:
    """One line per figure, with the bar that it is held against."""
    rows = [("what", "figure", "unit", "bar")]
    rows += [
        (each["what"], figure_text(each["value"], ",.4g"), each["unit"], each["bar"])
        for each in results["rounds"]
    ]
    return table_text(rows) + origin_text(results)


def reconcile_table(results: dict[str, Any]) -> str:
    """One line per number of messages, medians of its runs, and how the time grew."""
    head = ("messages", "seconds", "processor s", "PostgreSQL's", "peak MiB", "largest partition")
    rows: list[tuple[str, ...]] = [(*head, "of the time before")]
    rounds, before = results["rounds"], None
    for size in sorted({each["messages"] for each in rounds}):
        these = [each for each in rounds if each["messages"] == size]
        seconds = median(each["seconds"] for each in these)
        names = ("cpu_seconds", "server_cpu_seconds", "peak_mib")
        figures = (figure_text(median_of(these, name), ",.0f") for name in names)
        partition = f"{max(each['partition_mib'] for each in these):.0f} MiB"
        growth = figure_text(seconds / before if before else None, ".1f")
        rows.append((f"{size:,}", f"{seconds:.1f}", *figures, partition, growth))
        before = seconds
    return table_text(rows) + origin_text(results)


def idle_table(results: dict[str, Any]) -> str:
    """One line for each client that idled."""
    rows = [("idle", "queues", "of a core, %", "wake-ups/s", "MiB", "MiB over bare")]
    rows += [
        (
            each["kind"],
            str(each["queues"]),
            f"{each['cpu_percent']:.3f}",
            f"{each['wake_ups_per_second']:.1f}",
            f"{each['resident_mib']:.1f}",
            f"{each['over_bare_mib']:.1f}",
        )
        for each in results["rounds"]
    ]
    return table_text(rows) + origin_text(results)


def attacks_table(results: dict[str, Any]) -> str:
    """One line per attack: before, while and after; the bound of memory, the ratio of the p99."""
    head = ("attack", "connections", "MiB before, while, after", "more, bound")
    rows: list[tuple[str, ...]] = [(*head, "files before, while, after", "p99 ms", "ratio")]
    newest = {each["what"]: each for each in results["rounds"]}
    for each in newest.values():
        seen = [each[when] for when in ("before", "while", "after")]
        more = seen[1]["resident_mib"] - seen[0]["resident_mib"]
        rows.append(
            (
                each["what"],
                f"{each['connections']:,}",
                ", ".join(f"{one['resident_mib']:.0f}" for one in seen),
                f"{max(0.0, more):.0f}, {each['more_mib_max']}",
                ", ".join(f"{one['files']}" for one in seen),
                ", ".join(f"{one['p99_ms']:.1f}" for one in seen),
                f"{seen[1]['p99_ms'] / seen[0]['p99_ms']:.1f}",
            )
        )
    return table_text(rows) + origin_text(results)


def start_table(results: dict[str, Any]) -> str:
    """One line per start: medians of processor seconds and seconds, for what the start finds."""
    rounds = results["rounds"]
    states = list(dict.fromkeys(each["state"] for each in rounds))
    columns = [f"{state}: {unit}" for state in states for unit in ("processor s", "s")]
    rows: list[tuple[str, ...]] = [("start", *columns, "bar")]
    for what in dict.fromkeys(each["what"] for each in rounds):
        of_start = {each["state"]: each for each in rounds if each["what"] == what}
        cells = [
            f"{median(of_start[state][name]):.2f}"
            for state in states
            for name in ("processor_seconds", "seconds")
        ]
        bar = next(iter(of_start.values()))["bar"]
        rows.append((what, *cells, "" if bar is None else f"<= {bar:g}"))
    return table_text(rows) + origin_text(results)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "send": send_table,
    "send-apart": apart_table,
    "pair-sync": send_table,
    "pair-async": send_table,
    "pair-lag": figures_table,
    "pair-copy": figures_table,
    "consume": consume_table,
    "consume-pop": consume_table,
    "sdk-java": sdk_table,
    "sdk-java-local": sdk_table,
    "sdk-python": sdk_table,
    "popped-kill": figures_table,
    "http2": figures_table,
    "by-message": scale_table,
    "attacks": attacks_table,
    "kills": kill_table,
    "kills-pair": kill_pair_table,
    "kills-sdk": kill_sdk_table,
    "idle": idle_table,
    "start": start_table,
    "scale": scale_table,
    "curves": curves_table,
    "orders": orders_table,
    "resend": figures_table,
    "sustained": figures_table,
    "retention": figures_table,
    "duplicates": figures_table,
    "flow": flow_table,
    "many-at-once": figures_table,
    "rival": rival_table,
    "clients-official": clients_table,
    "clients-nats": clients_table,
    "client-memory": figures_table,
    "client-failover": figures_table,
    "reconcile": reconcile_table,
    "reconcile-load": figures_table,
    "reconcile-increment": figures_table,
    "console-pages": console_table,
    "console-beside": figures_table,
    "read-log": figures_table,
    "read-tables": figures_table,
}


def render(page: str) -> str:
    """Return the page with every table made anew that there are results for."""
    for name, table in TABLES.items():
        results = raw_results.newest(name)
        if results is not None:
            begin, end = f"<!-- table {name} -->\n", f"<!-- end {name} -->"
            pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
            content = begin + table(results) + end
            page = pattern.sub(lambda _, content=content: content, page)  # type: ignore[misc]
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the tables of the pages of figures.")
    parser.add_argument("--check", action="store_true", help="change nothing; 1 when out of date")
    options = parser.parse_args()
    if not options.check:
        for name in TABLES:
            raw_results.remove_replaced(name)
    is_changed = False
    for page in PAGES:
        before = page.read_text()
        after = render(before)
        is_changed |= before != after
        if not options.check:
            page.write_text(after)
    return int(options.check and is_changed)


if __name__ == "__main__":
    sys.exit(main())
