"""What a person lets be done to attempts: skip the message for its group, as `stub skip` does."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from reliable_mq.console.deeds import Chosen, Deed, NothingToDo, Preview, Sealed, counted
from reliable_mq.console.list_ledgers import LOGS
from reliable_mq.console.lists import EXPORT_ROWS, wanted_of
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.users import Role
from reliable_mq.console.work import Order, Outcome, Part
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.errors import UsageError
from reliable_mq.escalate.sql_skip_actions import SkipActions
from reliable_mq.escalate.sql_skips import SKIPPABLE, SkipCase, SkipView

PREVIEW_MAX = 100_000
_HAPPENS = [
    "The next delivery of each message to its group is acknowledged, and its handler not called.",
    "The next message of its ordering key can go on then.",
    "A stub that waits for no other group is confirmed.",
    "Reconciliation lists it as skipped by a person. That is no finding.",
]


def _look(sources: ConsoleSources, chosen: Chosen) -> Preview:
    seen_at = utc_datetime(sources.databases[chosen.database].clock.measured_now())
    places, left_out = Counter[str](), Counter[str]()
    seen: dict[str, datetime] = {}
    running = tried = 0
    later: list[datetime] = []
    for group, ids in _chosen_ids(sources, chosen, seen_at):
        for message_id, view in _actions(sources, chosen, group).views(ids).items():
            if view.case not in SKIPPABLE:
                left_out[_why_left(message_id, view, is_named=bool(chosen.ids))] += 1
                continue
            places[f"topic {view.topic}, group {group}"] += 1
            running += view.case is SkipCase.RUNNING
            tried += 1
            later += [] if view.next_attempt is None else [view.next_attempt]
            if chosen.ids:
                seen[f"{group} {message_id}"] = seen_at
        if tried > PREVIEW_MAX:
            raise NothingToDo(
                f"more than {PREVIEW_MAX:,} messages match: narrow the filter, or skip all that"
                " is stored by a reset of the offsets of the group"
            )
    if not tried:
        if not chosen.ids and not left_out:
            _check_group(sources, chosen)
        raise NothingToDo(f"nothing would be skipped{_list_of(left_out)}")
    return Preview(
        total=tried,
        lines=counted(places, "of"),
        happens=[_HAPPENS[0], _when(later, tried), *_HAPPENS[1:]],
        doubles=_doubles(running),
        seen_at=seen_at,
        seen=seen,
        left_out=[
            each if number == 1 else f"{number:,}: {each}" for each, number in left_out.items()
        ],
    )


def _when(later: Sequence[datetime], tried: int) -> str:
    """Return when a skip acts. `later`: the times before which there is no next attempt."""
    if not later:
        return "That is at the next attempt of each, whose time the rows do not say."
    first, last = min(later), max(later)
    times = f"{first:%Y-%m-%dT%H:%M:%SZ}"
    times += f" to {last:%Y-%m-%dT%H:%M:%SZ}" if last > first else ""
    some = f", for {len(later):,} of them" if len(later) < tried else ""
    return f"That is at the next attempt of each, not before {times}{some}."


def _check_group(sources: ConsoleSources, chosen: Chosen) -> None:
    """Check that a database or the application knows the group of a filter.

    Raises:
        NothingToDo: none does; the text names the groups of the application.
    """
    actions = _actions(sources, chosen, chosen.query["group"])
    try:
        actions.check_group(sources.mq._declared.groups)
    except UsageError as error:
        raise NothingToDo(str(error)) from error


def _why_left(message_id: str, view: SkipView, *, is_named: bool) -> str:
    return f"{message_id}: {view.says}" if is_named else view.case.value


def _list_of(left_out: Mapping[str, int]) -> str:
    return f": {'; '.join(list(left_out)[:3])}" if left_out else ""


def _doubles(running: int) -> list[str]:
    return [
        *([f"Handled right now: {running:,}."] if running else []),
        "What earlier attempts did outside of the database stays: look there.",
        "A handler that runs at that moment is refused at its commit, and rolled back.",
    ]


def _chosen_ids(
    sources: ConsoleSources, chosen: Chosen, until: datetime
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield a group and some of its messages, until all that were chosen were named."""
    if chosen.ids:
        by_group: dict[str, list[str]] = defaultdict(list)
        for each in chosen.ids:
            group, _, message_id = each.partition(" ")
            by_group[group].append(message_id)
        yield from by_group.items()
        return
    for rows in _pages(sources, chosen):
        ids = [row["message_id"] for row in rows if row["create_date"] <= until]
        if ids:
            yield chosen.query["group"], ids


def _pages(sources: ConsoleSources, chosen: Chosen) -> Iterator[Sequence[Mapping[str, Any]]]:
    """Yield the attempts without an effect that the filter matches, page by page."""
    if not chosen.query.get("group"):
        raise NothingToDo("name a group in the filter: only for one group all can be skipped")
    state = chosen.query.get("state")
    if state in ("consumed", "skipped"):
        raise NothingToDo(f"what is {state} cannot be skipped: take the state out of the filter")
    wanted = wanted_of(LOGS, [*chosen.query.items()], list(sources.databases))
    wanted = wanted._replace(
        values={**wanted.values, "state": "received"}, database=chosen.database, limit=EXPORT_ROWS
    )
    while True:
        page = LOGS.page(sources, wanted)
        yield page.rows
        if not page.next:
            return
        wanted = wanted._replace(cursor=page.next)


def _actions(
    sources: ConsoleSources, chosen: Chosen, group: str, order: Order | None = None
) -> SkipActions:
    databases = {chosen.database: sources.databases[chosen.database]}
    if order is None:
        return SkipActions(databases, group)
    return SkipActions(databases, group, actor=order.actor, why=order.why, run_id=order.number)


def _parts(sources: ConsoleSources, sealed: Sealed, order: Order) -> Iterator[Part]:
    chosen, preview = sealed.chosen, sealed.preview
    if chosen.ids:  # only those that the preview has seen
        chosen = Chosen(database=chosen.database, query=chosen.query, ids=[*preview.seen])
    for group, found in _chosen_ids(sources, chosen, preview.seen_at):
        actions, ids = _actions(sources, chosen, group, order), found
        if not chosen.ids:  # the preview has not counted the others, such as dead letters
            views = actions.views(found)
            ids = [each for each in found if views[each].case in SKIPPABLE]
        for at in range(0, len(ids), order.part_rows):
            for done in actions.skip(ids[at : at + order.part_rows]):
                left = {each: why for each, why in done.items() if why}
                yield Part(
                    {Outcome.DONE: len(done) - len(left), Outcome.CHANGED: len(left)},
                    tuple(f"{each}: {why}" for each, why in [*left.items()][:3]),
                )


SKIP_ATTEMPTS = Deed(
    name="attempt-skip",
    title="Skip for the group",
    role=Role.ADMIN,
    of_list=LOGS,
    look=_look,
    parts=_parts,
    is_final=True,
)
