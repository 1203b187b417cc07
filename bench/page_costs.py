"""How many pages PostgreSQL touches for a piece of work, and which indexes lead it there.

Receives an engine and what is done with it; hands on the cost. Unlike a time it is the same on a
machine that is busy with something else.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from sqlalchemy import Engine, event


class Cost(NamedTuple):
    """What all statements of a piece of work came to."""

    #: pages, in memory or read from the disk
    pages: int
    #: what led to them, without doubles: names of indexes, "Seq Scan on TABLE"
    ways: tuple[str, ...]


def cost_of(engine: Engine, work: Callable[[], object]) -> Cost:
    """Do some work, then explain its statements one after another, in a transaction that is undone.

    A statement that has taken its rows out of the way finds the next ones when it is explained.
    """
    plans = [plan for each in _statements(engine, work) for plan in _explained(engine, *each)]
    nodes = [node for plan in plans for node in _nodes(plan)]
    scans = (node for node in nodes if "Index Name" in node or node["Node Type"] == "Seq Scan")
    ways = (each.get("Index Name", f"Seq Scan on {each.get('Relation Name')}") for each in scans)
    pages = sum(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in plans)
    return Cost(pages, tuple(dict.fromkeys(ways)))


def _statements(engine: Engine, work: Callable[[], object]) -> list[tuple[str, Any]]:
    noted: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        noted.append((statement, parameters))

    event.listen(engine, "before_cursor_execute", note)
    try:
        work()
    finally:
        event.remove(engine, "before_cursor_execute", note)
    return noted


def _explained(engine: Engine, statement: str, parameters: Any) -> list[dict[str, Any]]:
    with engine.connect() as connection:
        explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}"
        (found,) = connection.exec_driver_sql(explain, parameters).one()
        connection.rollback()
    return [each["Plan"] for each in found]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from _nodes(each)
