"""Write the state machines of the code as docs/reference/state_machines.md.

Run `python -m tests.state_diagrams` after a table has changed; a test compares page and tables.
"""

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from reliable_mq.database.row_values import StubStatus
from reliable_mq.escalate import escalation
from reliable_mq.idempotency import breaker, claim
from reliable_mq.outbox import half, stub

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "state_machines.md"

HEAD = """# State machines

Each diagram shows a literal table of the code. An event that a state does not have is illegal
there: the code raises, or its SQL statement finds no row. Then nothing changes.
"""


class Machine(NamedTuple):
    """A table of transitions, and what has these states."""

    title: str
    module: str
    first: Enum
    table: Mapping[Any, Any]


MACHINES = (
    Machine("A stub", stub.__name__, StubStatus.UNCONFIRMED, stub.TRANSITIONS),
    Machine(
        "A half message, in the process that sent it",
        half.__name__,
        half.HalfState.PREPARED,
        half.HALF_TRANSITIONS,
    ),
    Machine("A consume-log row", claim.__name__, claim.RowState.ABSENT, claim.ROW_TRANSITIONS),
    Machine(
        "An alert", escalation.__name__, escalation.AlertState.GATHERED, escalation.TRANSITIONS
    ),
    Machine(
        "The circuit breaker of Redis",
        breaker.__name__,
        breaker.Circuit.CLOSED,
        breaker.TRANSITIONS,
    ),
)


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(_section(machine) for machine in MACHINES)


def _section(machine: Machine) -> str:
    arrows = [
        f"    {before.name} --> {after.name}: {str(event.value).lower()}"
        for (before, event), after in machine.table.items()
    ]
    drawing = "\n".join(["stateDiagram-v2", f"    [*] --> {machine.first.name}", *arrows])
    return f"\n## {machine.title}\n\nTable in `{machine.module}`.\n\n```mermaid\n{drawing}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
