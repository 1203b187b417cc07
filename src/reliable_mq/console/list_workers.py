"""The list of workers: processes that report to a database, and members of consumer groups."""

from collections.abc import Iterator
from typing import Any

from reliable_mq.cli.remote_words import words_of
from reliable_mq.console.lists import Field, ListColumn, ListPage, RowList, WantedPage
from reliable_mq.console.overview_figures import is_this
from reliable_mq.console.sources import PART_SECONDS, ConsoleSources, ask
from reliable_mq.console.sql_pages import part_of
from reliable_mq.errors import NotFound
from reliable_mq.measuring.sql_machines import SeenProcess, machines_of

GROUPS_MAX = 200
"""So many groups are asked for their members."""
_STATES = ("reports", "silent", "connected", "nobody")


def _workers(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    away: list[str] = []
    notes: list[str] = []
    processes = ask(lambda: _processes(sources, wanted.database), PART_SECONDS)
    rows = list(processes.value or ())
    if processes.value is None:
        away.append(f"Database {wanted.database}: {processes.fault}")
    if sources.why_no_cluster:
        away.append(f"Broker: {sources.why_no_cluster}")
    else:
        group = wanted.text("group")
        members = ask(lambda: list(_members(sources, group, away, notes)), PART_SECONDS)
        rows += members.value or ()
        if members.value is None:
            away.append(f"Broker: {members.fault}")
    rows = [row for row in rows if _matches(row, wanted)]
    page, after = part_of(rows, wanted.cursor, wanted.limit)
    return ListPage(page, after, tuple(away), tuple(notes))


def _matches(row: dict[str, Any], wanted: WantedPage) -> bool:
    texts = (row["name"], row["host"])
    return (
        wanted.text("state") in ("", row["state"])
        and wanted.text("group") in ("", row["consumer_group"])
        and any(wanted.text("name") in text for text in texts)
    )


def _processes(sources: ConsoleSources, name: str) -> list[dict[str, Any]]:
    with sources.place(name):
        found = machines_of(sources.databases[name]).processes
    return [_process_row(each) for each in found]


def _process_row(process: SeenProcess) -> dict[str, Any]:
    return {
        "state": "silent" if process.is_silent else "reports",
        "what": "this console" if is_this(process) else f"process of {process.application}",
        "consumer_group": "",
        "name": process.owner,
        "host": f"{process.host}, process {process.pid}",
        "version": process.version,
        "started": process.started,
        "seen": process.seen,
        "clock": f"{process.clock_ahead:+.3f} s",
        "slowest": [f"{group}: {took:.1f} s" for group, took in process.slowest.items()],
    }


def _members(
    sources: ConsoleSources, group: str, away: list[str], notes: list[str]
) -> Iterator[dict[str, Any]]:
    """Yield the members of groups; a group of the application without one has a row, too."""
    with sources.admin() as admin:
        own = {sources.whole_name(each) for each in sources.mq.consumer_groups}
        known = sorted({*admin.groups.all_settings().value, *own}) if not group else [group]
        if len(known) > GROUPS_MAX:
            notes.append(f"of {len(known)} groups, the first {GROUPS_MAX} were asked: name one")
        failures: dict[str, str] = {}
        for each in known[:GROUPS_MAX]:
            try:
                answer = admin.groups.connections(each)
            except NotFound:  # deleted meanwhile, or never connected
                if each in own:
                    yield _member_row("nobody", each)
                continue
            failures |= {name: words_of(error) for name, error in answer.failures.items()}
            for member in answer.value.members:
                yield _member_row("connected", each) | {
                    "name": member.client_id,
                    "host": member.address,
                    "version": f"{member.language} {member.version}",
                }
            if not answer.value.members and each in own and not answer.failures:
                yield _member_row("nobody", each)
    away += [f"broker {name}: {why}" for name, why in failures.items()]


def _member_row(state: str, group: str) -> dict[str, Any]:
    nothing: dict[str, Any] = {"started": None, "seen": None, "clock": None, "slowest": []}
    texts = {"name": "", "host": "", "version": ""}
    what = f"member of {group}" if state == "connected" else f"nobody consumes for {group}"
    return {"state": state, "what": what, "consumer_group": group, **texts, **nothing}


WORKERS = RowList(
    name="workers",
    title="Workers",
    summary="Processes that report to the database once a minute, and the members of consumer"
    " groups that brokers know. A process that ended stays for a day, as silent.",
    empty="No worker matches. Without a condition: no process ran within a day.",
    columns=(
        ListColumn("what", "What"),
        ListColumn("state", "State", "state"),
        ListColumn("consumer_group", "Group", "group"),
        ListColumn("name", "Name"),
        ListColumn("host", "Where"),
        ListColumn("version", "Version"),
        ListColumn("started", "Started", "time"),
        ListColumn("seen", "Last report", "time"),
        ListColumn("clock", "Clock ahead"),
        ListColumn("slowest", "Slowest handling", "words"),
    ),
    fields=(
        Field("state", "State", "choice", _STATES),
        Field("group", "Consumer group"),
        Field("name", "Name or place holds"),
    ),
    page=_workers,
    of_database=True,
)
