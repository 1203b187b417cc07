"""Checks of periodic messages: ticks that nobody fires, and functions that fail."""

from collections.abc import Callable, Sequence

from sqlalchemy.exc import SQLAlchemyError

from reliable_mq.database.sql_faults import fault_line
from reliable_mq.doctor.finding import CheckFindings, Finding
from reliable_mq.periodic.declaration import PeriodicState


def periodic_findings(read: Callable[[], Sequence[PeriodicState]]) -> list[Finding]:
    """Return the findings about the periodic messages of an application; none if it has none.

    `read` returns what the database knows of them.
    """
    report = CheckFindings("periodic")
    try:
        states = read()
    except SQLAlchemyError as error:
        report.skip(f"could not look: {fault_line(error)}")
        return report.findings
    for state in states:
        if state.failures:
            report.error(
                f"periodic message {state.name} failed {state.failures} time(s) in a row: "
                f"{state.note}",
                "correct its function; the log of reliable-mq resend has the traceback",
            )
        elif state.overdue is not None:
            report.error(
                f"periodic message {state.name}: nobody fires the tick of "
                f"{state.overdue.isoformat(timespec='seconds')}",
                "run reliable-mq resend MODULE:OBJECT; if one runs, look at its log",
            )
    if states and not report.findings:
        report.ok(f"{len(states)} periodic message(s), and no tick is overdue")
    return report.findings
