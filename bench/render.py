"""Make the tables of docs/evidence/performance.md from the newest raw results; prose is left alone.

A table stands between `<!-- table NAME -->` and `<!-- end NAME -->`.

    python -m bench.render [--check]
"""

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench import raw_results

PAGE = Path(__file__).parent.parent / "docs" / "evidence" / "performance.md"
OURS = "reliable_mq"
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


def send_table(results: dict[str, Any]) -> str:
    """One line per mode: medians of the rounds, ours over Apache's as ratio."""
    rows = [("send", "Apache msg/s", "ours msg/s", "ratio", "Apache p99 ms", "ours p99 ms")]
    rounds = results["rounds"]
    for mode in dict.fromkeys(each["mode"] for each in rounds):
        ours = [each for each in rounds if each["mode"] == mode and each["broker"] == OURS]
        theirs = [each for each in rounds if each["mode"] == mode and each["broker"] != OURS]
        speed, their_speed = _median(ours, "per_second"), _median(theirs, "per_second")
        rows.append(
            (
                mode,
                _figure(their_speed, ",.0f"),
                _figure(speed, ",.0f"),
                _figure(speed / their_speed if speed and their_speed else None, ".2f"),
                _figure(_median(theirs, "p99_ms"), ".1f"),
                _figure(_median(ours, "p99_ms"), ".1f"),
            )
        )
    others = _median(rounds, "others_processors")
    return f"{_markdown(rows)}{_origin(results)}Others used {others:.2f} processors meanwhile.\n"


def consume_table(results: dict[str, Any]) -> str:
    """Medians of the rounds of each broker, and of the ratio in each turn."""
    rows = [("broker", "msg/s consumed", "its processor time a message, us")]
    rounds = results["rounds"]
    for broker in dict.fromkeys(each["broker"] for each in rounds):
        of_broker = [each for each in rounds if each["broker"] == broker]
        speed, used = _median(of_broker, "per_second"), _median(of_broker, "broker_us")
        rows.append((broker, _figure(speed, ",.0f"), _figure(used, ".1f")))
    ours = {each["run"]: each["per_second"] for each in rounds if each["broker"] == OURS}
    theirs = {each["run"]: each["per_second"] for each in rounds if each["broker"] != OURS}
    ratio = median(ours[run] / theirs[run] for run in ours)
    rows.append(("ratio, median of the turns", _figure(ratio, ".2f"), ""))
    return _markdown(rows) + _origin(results)


def sdk_table(results: dict[str, Any]) -> str:
    """One line per SDK and turn: medians, the median of the ratios; then memory and start."""
    columns = ("msg/s", "its us", "SDK's us")
    heads = (f"{who} {each}" for who in ("Apache", "ours") for each in columns)
    rows: list[tuple[str, ...]] = [("SDK, what it does", *heads, "ratio", "bar")]
    rounds = [each for each in results["rounds"] if "sdk" in each]
    for sdk, what, bar in dict.fromkeys((e["sdk"], e["what"], e["bar"]) for e in rounds):
        of_turn = [each for each in rounds if (each["sdk"], each["what"]) == (sdk, what)]
        theirs = [each for each in of_turn if each["broker"] != OURS]
        ours = [each for each in of_turn if each["broker"] == OURS]
        pairs = zip(ours, theirs, strict=True)
        ratio = median(mine["per_second"] / its["per_second"] for mine, its in pairs)
        figures = [
            _figure(_median(these, name), ",.0f")
            for these in (theirs, ours)
            for name in ("per_second", "server_us", "client_us")
        ]
        rows.append((f"{sdk}: {what}", *figures, f"{ratio:.2f}", f">= {bar:g}"))
    wholes: list[tuple[str, ...]] = [("all server processes", "Apache", "ours", "ratio", "bar")]
    figures_of = [each for each in results["rounds"] if "value" in each]
    for what, bar in dict.fromkeys((each["what"], each["bar"]) for each in figures_of):
        values = {
            each["broker"] == OURS: each["value"] for each in figures_of if each["what"] == what
        }
        ratio = values[True] / values[False]
        row = (_figure(values[False], ",.1f"), _figure(values[True], ",.1f"))
        wholes.append((what, *row, f"{ratio:.2f}", f"<= {bar:g}"))
    return f"{_markdown(rows)}\n{_markdown(wholes)}{_origin(results)}"


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
    return _markdown(rows) + _origin(results)


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
                _figure(median(served) if served else None, ".2f"),
                _figure(max(served, default=None), ".2f"),
            )
        )
    return _markdown(rows) + _origin(results)


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
    return f"{_markdown(runs)}\n{_markdown(shares)}{_origin(results)}"


def flow_table(results: dict[str, Any]) -> str:
    """Medians of every flow, and what of the flow without messages each one reaches."""
    rounds = results["rounds"]

    def speed(flow: str) -> float | None:
        these = [each for each in rounds if each["flow"] == flow and "orders_per_second" in each]
        return _median(these, "orders_per_second")

    plain = speed("plain")
    rows = [("flow", "orders/s, effect committed", "of plain", "idle p50 ms", "idle p99 ms")]
    for flow in dict.fromkeys(each["flow"] for each in rounds):
        found = speed(flow)
        share = found / plain if found and plain else None
        idle = [each for each in rounds if each["flow"] == flow and "p50_ms" in each]
        times = (_median(idle, "p50_ms"), _median(idle, "p99_ms"))
        figures = (_figure(each, ".1f") for each in times)
        rows.append((flow, _figure(found, ",.0f"), _figure(share, ".2f"), *figures))
    timed = [each for each in rounds if "processor_ms" in each]
    flows = dict.fromkeys(each["flow"] for each in timed)
    used = [("processor ms for each order", *flows)]
    for name in timed[-1]["processor_ms"]:
        cells = [
            [each["processor_ms"][name] for each in timed if each["flow"] == flow] for flow in flows
        ]
        used.append((name, *(format(median(each), ".2f") for each in cells)))
    return f"{_markdown(rows)}\n{_markdown(used)}{_origin(results)}"


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
        deferred, speed = (_figure(_median(these, of), ",.0f") for of in ("deferred", "worked"))
        label = f"reliable_mq, {side}" if is_ours else side
        ratio_text, bar = (_figure(ratio, ".2f"), ">= 2.5") if is_ours else ("", "")
        rows.append((label, deferred, speed, ratio_text, bar))
    return _markdown(rows) + _origin(results)


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
        theirs = max(of_ways, key=lambda these: _median(these, "per_second") or 0.0)
        pairs = zip(ours, theirs, strict=True)
        ratio = median(mine["per_second"] / its["per_second"] for mine, its in pairs)
        figures = [
            _figure(_median(these, name), ",.0f")
            for these in (theirs, ours)
            for name in ("per_second", "client_us")
        ]
        name = f"{rival}, {theirs[0]['what']}"
        bar_text = f">= {bar:g}" if bar else ""
        rows.append((what, name, *figures[:2], side, *figures[2:], f"{ratio:.2f}", bar_text))
    return _markdown(rows) + _origin(results)


def scale_table(results: dict[str, Any]) -> str:
    """One line per figure, Apache's beside ours where there is one."""
    rows = [("what", "Apache", "ours", "ratio", "unit")]
    figures = results["rounds"]
    for what in dict.fromkeys(each["what"] for each in figures):
        of_both = [each for each in figures if each["what"] == what]
        ours = _median([each for each in of_both if each["broker"] == OURS], "value")
        theirs = _median([each for each in of_both if each["broker"] != OURS], "value")
        ratio = ours / theirs if ours is not None and theirs else None
        values = (_figure(theirs, ",.3g"), _figure(ours, ",.3g"), _figure(ratio, ".2f"))
        rows.append((what, *values, of_both[0]["unit"]))
    return _markdown(rows) + _origin(results)


def figures_table(results: dict[str, Any]) -> str:
    """One line per figure, with the bar that it is held against."""
    rows = [("what", "figure", "unit", "bar")]
    rows += [
        (each["what"], _figure(each["value"], ",.4g"), each["unit"], each["bar"])
        for each in results["rounds"]
    ]
    return _markdown(rows) + _origin(results)


def reconcile_table(results: dict[str, Any]) -> str:
    """One line per number of messages, medians of its runs, and how the time grew."""
    head = ("messages", "seconds", "processor s", "PostgreSQL's", "peak MiB", "largest partition")
    rows: list[tuple[str, ...]] = [(*head, "of the time before")]
    rounds, before = results["rounds"], None
    for size in sorted({each["messages"] for each in rounds}):
        these = [each for each in rounds if each["messages"] == size]
        seconds = median(each["seconds"] for each in these)
        names = ("cpu_seconds", "server_cpu_seconds", "peak_mib")
        figures = (_figure(_median(these, name), ",.0f") for name in names)
        partition = f"{max(each['partition_mib'] for each in these):.0f} MiB"
        growth = _figure(seconds / before if before else None, ".1f")
        rows.append((f"{size:,}", f"{seconds:.1f}", *figures, partition, growth))
        before = seconds
    return _markdown(rows) + _origin(results)


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
    return _markdown(rows) + _origin(results)


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
    return _markdown(rows) + _origin(results)


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
    return _markdown(rows) + _origin(results)


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "send": send_table,
    "pair-sync": send_table,
    "pair-async": send_table,
    "pair-lag": figures_table,
    "pair-copy": figures_table,
    "consume": consume_table,
    "consume-pop": consume_table,
    "sdk": sdk_table,
    "sdk-local": sdk_table,
    "popped-kill": figures_table,
    "http2": figures_table,
    "by-message": figures_table,
    "attacks": attacks_table,
    "kills": kill_table,
    "kills-pair": kill_pair_table,
    "idle": idle_table,
    "start": start_table,
    "scale": scale_table,
    "orders": orders_table,
    "resend": figures_table,
    "retention": figures_table,
    "duplicates": figures_table,
    "flow": flow_table,
    "rival": rival_table,
    "clients-official": clients_table,
    "clients-nats": clients_table,
    "client-memory": figures_table,
    "client-failover": figures_table,
    "reconcile": reconcile_table,
    "reconcile-load": figures_table,
    "reconcile-increment": figures_table,
    "read-log": figures_table,
    "read-tables": figures_table,
}


def _median(rounds: Iterable[dict[str, Any]], name: str) -> float | None:
    values = [each[name] for each in rounds]
    return median(values) if values else None


def _figure(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _markdown(rows: Sequence[tuple[str, ...]]) -> str:
    head, *body = rows
    ruler = ("---", *("---:" for _ in head[1:]))
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ruler, *body)) + "\n"


def _origin(results: dict[str, Any]) -> str:
    machine = results["machine"]
    settings = ", ".join(f"{name} {value}" for name, value in results["settings"].items())
    return (
        f"\n{results['finished'][:10]}, {machine['cores']} cores, {machine['system']}, "
        f"Python {machine['python']}, load average {machine['load_average']} at the end; "
        f"{settings}.\n"
    )


def render(page: str) -> str:
    """Return the page with every table made anew that there are results for."""
    for name, table in TABLES.items():
        read = raw_results.newest_figures if name in ("attacks", "scale") else raw_results.newest
        results = read(name)
        if results is not None:
            begin, end = f"<!-- table {name} -->\n", f"<!-- end {name} -->"
            pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
            content = begin + table(results) + end
            page = pattern.sub(lambda _, content=content: content, page)  # type: ignore[misc]
    return page


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the tables of docs/evidence/performance.md.")
    parser.add_argument("--check", action="store_true", help="change nothing; 1 when out of date")
    options = parser.parse_args()
    before = PAGE.read_text()
    after = render(before)
    if options.check:
        return int(before != after)
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
