"""The tables of `sdk_throughput` and `kill_sdk`."""

from statistics import median
from typing import Any

from bench.send_tables import SEND_BAR_TITLES, SEND_CEILING, beside_ceiling
from bench.table_text import OURS, figure_text, median_of, origin_text, table_text


def sdk_table(results: dict[str, Any]) -> str:
    """One line per SDK and turn: medians, the median of the ratios; then memory and start.

    Where an endpoint that stores nothing took turns, too, its rate is the ceiling of the SDK.
    """
    columns = ("msg/s", "its us", "SDK's us")
    heads = (f"{who} {each}" for who in ("Apache", "ours") for each in columns)
    rounds = [each for each in results["rounds"] if "sdk" in each]
    has_ceiling = any(each["broker"] == SEND_CEILING for each in rounds)
    titles = SEND_BAR_TITLES if has_ceiling else SEND_BAR_TITLES[:1]
    rows: list[tuple[str, ...]] = [("SDK, what it does", *heads, "ratio", *titles)]
    for sdk, what, bar in dict.fromkeys((e["sdk"], e["what"], e["bar"]) for e in rounds):
        of_turn = [each for each in rounds if (each["sdk"], each["what"]) == (sdk, what)]
        theirs = [each for each in of_turn if each["broker"] not in (OURS, SEND_CEILING)]
        ceiling = [each for each in of_turn if each["broker"] == SEND_CEILING]
        ours = [each for each in of_turn if each["broker"] == OURS]
        pairs = zip(ours, theirs, strict=True)
        ratio = median(mine["per_second"] / its["per_second"] for mine, its in pairs)
        figures = [
            figure_text(median_of(these, name), ",.0f")
            for these in (theirs, ours)
            for name in ("per_second", "server_us", "client_us")
        ]
        speed, their_speed = median_of(ours, "per_second"), median_of(theirs, "per_second")
        beside = beside_ceiling(bar, speed, their_speed, ceiling)[: len(titles)]
        rows.append((f"{sdk}: {what}", *figures, f"{ratio:.2f}", *beside))
    wholes: list[tuple[str, ...]] = [("all server processes", "Apache", "ours", "ratio", "bar")]
    figures_of = [each for each in results["rounds"] if "value" in each]
    for what, bar in dict.fromkeys((each["what"], each["bar"]) for each in figures_of):
        values = {
            each["broker"] == OURS: each["value"] for each in figures_of if each["what"] == what
        }
        ratio = values[True] / values[False]
        row = (figure_text(values[False], ",.1f"), figure_text(values[True], ",.1f"))
        wholes.append((what, *row, f"{ratio:.2f}", f"<= {bar:g}"))
    return f"{table_text(rows)}\n{table_text(wholes)}{origin_text(results)}"


def kill_sdk_table(results: dict[str, Any]) -> str:
    """One line per run of `kill_sdk`."""
    names = ("kills", "consumer_kills", "sent", "received", "acknowledged", "lost", "came_again")
    head = ("SIGKILL at", "of the broker", "of consumers", "sends confirmed", "received")
    rows: list[tuple[str, ...]] = [(*head, "acknowledged", "lost", "came after acknowledgement")]
    rows += [(each["broker"], *(f"{each[name]:,}" for name in names)) for each in results["rounds"]]
    return table_text(rows) + origin_text(results)
