"""Whether anything is wrong: one sign for each thing that a person on call asks about. Pure.

Receives figures and their ages. Returns signs, the worst first in `worst`. A sign has a word, so
that nobody needs to see its colour, and the address of the list that shows what it counts.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import quote

from reliable_mq.client.administering.thread_all_progress import GroupLine
from reliable_mq.measuring.sql_last_run import LastRun
from reliable_mq.telemetry.families import Sample

UNSENT_SECONDS = 60.0
"""A stub that waits longer to be sent is a sign that sending has stopped."""
LAG_MESSAGES = 1_000
RUN_SECONDS = 26 * 3600.0
"""A run each day, and two hours more."""


class State(StrEnum):
    """How bad a sign is."""

    BAD = "bad"
    UNKNOWN = "unknown"
    WARN = "warn"
    WELL = "well"


WORDS = {
    State.BAD: "Act now",
    State.UNKNOWN: "Not known",
    State.WARN: "Look",
    State.WELL: "Fine",
}


class Sign(NamedTuple):
    """One sign.

    `figure`: the number or the word that is written large. `text`: what it means. `age`: how old
    it is, in seconds; None: unknown. `link`: the address of the list; "": there is none.
    """

    name: str
    state: State
    figure: str
    text: str
    age: float | None = None
    link: str = ""

    @property
    def word(self) -> str:
        """The state in words."""
        return WORDS[self.state]


def worst(signs: Sequence[Sign]) -> State:
    """Return the worst state of signs; without signs, all is well."""
    states = {each.state for each in signs}
    return next((each for each in State if each in states), State.WELL)


def summary(signs: Sequence[Sign]) -> str:
    """Return whether anything is wrong, in one sentence."""
    bad = [each.name.lower() for each in signs if each.state is State.BAD]
    unknown = [each.name.lower() for each in signs if each.state is State.UNKNOWN]
    warned = [each.name.lower() for each in signs if each.state is State.WARN]
    if bad:
        return f"Act now: {', '.join(bad)}"
    if unknown:
        return f"Not all is known: {', '.join(unknown)}"
    if warned:
        return f"Worth a look: {', '.join(warned)}"
    return "Nothing is wrong"


def _sum(samples: Sequence[Sample], name: str) -> int:
    return int(sum(each.value for each in samples if each.name == name))


def of_database(
    name: str, samples: Sequence[Sample] | None, age: float | None, fault: str, lists: set[str]
) -> list[Sign]:
    """Return the signs of one database.

    Args:
        name: what its signs begin with; "": it is the only one.
        samples: the figures; None: none were ever read.
        age: their age in seconds.
        fault: why the newest reading failed; "": it did not.
        lists: the names of the lists that there are.
    """
    before = f"{name}: " if name else ""
    of_this = f"&database={quote(name, safe='')}" if name else ""
    signs = [
        Sign(f"{before}Database", State.BAD, "away", fault, age)
        if fault
        else Sign(f"{before}Database", State.WELL, "answers", "It can be read.", age)
    ]
    if samples is None:
        return signs

    def counted(title: str, count: int, bad: State, text: str, path: str) -> Sign:
        link = path if path.partition("?")[0].strip("/") in lists else ""
        state = bad if count else State.WELL
        return Sign(before + title, state, f"{count:,}", text, age, link)

    escalated = _sum(samples, "reliable_mq_escalations_open")
    letters = _sum(samples, "reliable_mq_dead_letters_open")
    unsent = _sum(samples, "reliable_mq_outbox_unsent_stubs")
    waiting = _sum(samples, "reliable_mq_outbox_unconfirmed_stubs")
    oldest = max(
        (each.value for each in samples if each.name == "reliable_mq_outbox_oldest_unsent_seconds"),
        default=0.0,
    )
    signs += [
        counted(
            "Escalations",
            escalated,
            State.BAD,
            "Other than dead letters: messages that are stuck, or sent too often.",
            f"/escalations?open=yes&no_dead_letters=yes{of_this}",
        ),
        counted(
            "Dead letters",
            letters,
            State.BAD,
            "Consumer groups gave these messages up.",
            "/dead-letters",  # they lie at brokers: the list is of no database
        ),
        Sign(
            f"{before}Oldest unsent stub",
            State.BAD if oldest >= UNSENT_SECONDS else State.WELL,
            span(oldest) if unsent else "none",
            f"{unsent:,} committed, and not stored by a broker yet.",
            age,
            f"/stubs?status=unconfirmed{of_this}",
        ),
        Sign(
            f"{before}Backlog",
            State.WELL,
            f"{waiting:,}",
            "Stored by the broker, and not confirmed yet.",
            age,
            f"/stubs?status=unconfirmed{of_this}",
        ),
    ]
    return signs


def of_cluster(
    groups: Sequence[GroupLine] | None,
    failures: Mapping[str, str],
    age: float,
    fault: str,
    lists: set[str],
) -> list[Sign]:
    """Return the signs of the cluster: whether it answers, and which groups are behind."""
    link = "/groups" if "groups" in lists else ""
    if fault:
        is_asked = not fault.startswith("not asked")
        state = State.BAD if is_asked else State.UNKNOWN
        word = "away" if is_asked else "not asked"
        signs = [Sign("Broker", state, word, fault, age if groups is not None else None)]
    elif failures:
        text = "; ".join(f"{name}: {why}" for name, why in failures.items())
        signs = [Sign("Broker", State.BAD, "partly away", text, age)]
    else:
        signs = [Sign("Broker", State.WELL, "answers", "All brokers answer.", age)]
    if groups is None:
        return signs
    behind = sorted((each for each in groups if each.lag), key=lambda each: -each.lag)
    total = sum(each.lag for each in behind)
    alone = [each.group for each in behind if not each.members]
    text = ", ".join(f"{each.group} {each.lag:,}" for each in behind[:3]) or "No group is behind."
    if alone:
        text += f". No member is connected: {', '.join(alone[:3])}"
    state = State.WARN if total >= LAG_MESSAGES or alone else State.WELL
    return [*signs, Sign("Lag of groups", state, f"{total:,}", text, age, link)]


def of_run(
    run: LastRun | None,
    now: datetime,
    age: float | None,
    fault: str,
    lists: set[str],
    database: str = "",
) -> Sign:
    """Return the sign of the last run of reconciliation.

    `database`: the one that has it; "": there is only one.
    """
    name = "Reconciliation"
    if run is None:
        if fault:
            return Sign(name, State.UNKNOWN, "not known", fault, age)
        text = "No run was made: reliable-mq reconcile finds what was lost or doubled."
        return Sign(name, State.WARN, "no run", text, age)
    since = max(0.0, (now - run.finished).total_seconds())
    link = f"/findings?run={quote(run.run_id, safe='')}" if "findings" in lists else ""
    if link and database:
        link += f"&database={quote(database, safe='')}"
    when = f"The last run ended {span(since)} ago."
    if run.findings:
        return Sign(name, State.BAD, f"{run.findings:,} findings", when, age, link)
    state = State.WARN if since > RUN_SECONDS else State.WELL
    return Sign(name, state, "0 findings", when, age, link)


def span(seconds: float) -> str:
    """Return a time span as a person says it: "12 s", "5 min", "3 h", "2 d"."""
    for length, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * length:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds)} s"
