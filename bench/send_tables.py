"""Tables of sends: what Apache's Java client reaches at each broker, and at most."""

from typing import Any

from bench.table_text import OURS, figure_text, median_of, origin_text, table_text

SEND_CEILING = "nothing stored"
SEND_BAR_TITLES = ("bar", "ceiling msg/s", "ours of it", "bar of it")


def send_table(results: dict[str, Any]) -> str:
    """One line per mode: medians of the rounds, ours over Apache's as ratio.

    Where a server that stores nothing took rounds, too, its rate is the ceiling of the client.
    """
    rounds = results["rounds"]
    beside = SEND_BAR_TITLES if any(each["broker"] == SEND_CEILING for each in rounds) else ()
    titles = ("send", "Apache msg/s", "ours msg/s", "ratio", *beside)
    rows: list[tuple[str, ...]] = [(*titles, "Apache p99 ms", "ours p99 ms")]
    for mode in dict.fromkeys(each["mode"] for each in rounds):
        of_mode = [each for each in rounds if each["mode"] == mode]
        ours = [each for each in of_mode if each["broker"] == OURS]
        ceiling = [each for each in of_mode if each["broker"] == SEND_CEILING]
        theirs = [each for each in of_mode if each["broker"] not in (OURS, SEND_CEILING)]
        speed, their_speed = median_of(ours, "per_second"), median_of(theirs, "per_second")
        bar = of_mode[0].get("bar", 0.0)
        rows.append(
            (
                mode,
                figure_text(their_speed, ",.0f"),
                figure_text(speed, ",.0f"),
                figure_text(speed / their_speed if speed and their_speed else None, ".2f"),
                *(beside_ceiling(bar, speed, their_speed, ceiling) if beside else ()),
                figure_text(median_of(theirs, "p99_ms"), ".1f"),
                figure_text(median_of(ours, "p99_ms"), ".1f"),
            )
        )
    others = median_of(rounds, "others_processors")
    return (
        f"{table_text(rows)}{origin_text(results)}Others used {others:.2f} processors meanwhile.\n"
    )


def beside_ceiling(
    bar: float,
    speed: float | None,
    their_speed: float | None,
    ceiling: list[dict[str, Any]],
) -> tuple[str, ...]:
    """Return the bar, the most that the client can send, and ours and the bar as shares of it."""
    most = median_of(ceiling, "per_second")
    least = bar * their_speed if their_speed else None
    return (
        f">= {bar:g}",
        figure_text(most, ",.0f"),
        figure_text(speed / most if speed and most else None, ".2f"),
        figure_text(least / most if least and most else None, ".2f"),
    )


def apart_table(results: dict[str, Any]) -> str:
    """One line per way: medians of the rounds, ours over Apache's as ratio."""
    rounds = results["rounds"]
    titles = ("send", "Apache msg/s", "ours msg/s", "ratio", "bar", "Apache us", "ours us")
    rows: list[tuple[str, ...]] = [titles]
    for mode in dict.fromkeys(each["mode"] for each in rounds):
        of_mode = [each for each in rounds if each["mode"] == mode]
        ours = [each for each in of_mode if each["broker"] == OURS]
        theirs = [each for each in of_mode if each["broker"] != OURS]
        speed, their_speed = median_of(ours, "per_second"), median_of(theirs, "per_second")
        rows.append(
            (
                mode,
                figure_text(their_speed, ",.0f"),
                figure_text(speed, ",.0f"),
                figure_text(speed / their_speed if speed and their_speed else None, ".2f"),
                f">= {of_mode[0]['bar']:g}",
                figure_text(median_of(theirs, "broker_us"), ".1f"),
                figure_text(median_of(ours, "broker_us"), ".1f"),
            )
        )
    return table_text(rows) + origin_text(results)
