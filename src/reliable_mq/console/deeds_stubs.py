"""What a person lets be done to stubs, as `reliable-mq stub` does: send them again, void them."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import select

from reliable_mq.console.deeds import Chosen, Deed, NothingToDo, Preview, Sealed, counted
from reliable_mq.console.list_stubs import STUBS, stub_filter_of
from reliable_mq.console.lists import wanted_of
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.users import Role
from reliable_mq.console.work import Order, Outcome, Part
from reliable_mq.database.row_values import StubStatus
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.escalate.sql_operator_actions import OperatorActions, SelectedStubs
from reliable_mq.escalate.stub_filter import status_text
from reliable_mq.outbox.stub import StubEvent, groups_of

_HAPPENS = {
    StubEvent.RETRY: (
        "Each stub starts again: unconfirmed, with no sends, due at once. A scheduler sends it.",
        "Its consumer groups get all their attempts again.",
        "Its open escalation is closed.",
    ),
    StubEvent.VOID: (
        "Each stub is voided: it is sent no more, and nothing waits for it.",
        "What consumer groups have done with it stays.",
        "If one has consumed it, reconciliation finds it voided but consumed.",
        "Its open escalation is closed.",
    ),
}


def _selected(sources: ConsoleSources, chosen: Chosen, event: StubEvent) -> SelectedStubs:
    wanted = wanted_of(STUBS, [*chosen.query.items()], list(sources.databases))
    database = sources.databases[chosen.database]
    actions = OperatorActions(database, event, actor="", why="")
    return actions.chosen(stub_filter_of(sources, wanted))


def _look(sources: ConsoleSources, chosen: Chosen, event: StubEvent) -> Preview:
    # Before the rows are read: what changes later has changed since.
    seen_at = utc_datetime(sources.databases[chosen.database].clock.measured_now())
    counts = Counter[str]()
    sent, left_out, seen = 0, [], dict[str, datetime]()
    if chosen.ids:
        for row in _rows(sources, chosen):
            status = StubStatus(row["status"]) if row["status"] in list(StubStatus) else None
            if status is StubStatus.CONFIRMED or (
                event is StubEvent.VOID and status is StubStatus.VOIDED
            ):
                left_out.append(f"{row['message_id']}: it is {status_text(row['status'])}")
                continue
            seen[row["message_id"]] = row["update_date"]
            counts[_place(row["topic"], row["required_groups"])] += 1
            sent += row["count"] > 0
        total = len(seen)
        missing = len(set(chosen.ids)) - total - len(left_out)
        if missing:
            left_out.append(f"{missing} of the marked stubs are not in the database any more")
    else:
        for each in _selected(sources, chosen, event).sums(seen_at):
            counts[_place(each.topic, each.required_groups)] += each.number
            sent += each.sent
        total = sum(counts.values())
        if not chosen.query.get("status") and chosen.query.get("escalated") != "yes":
            left_out.append("Stubs that wait for no person: name a status in the filter for them")
    return Preview(
        total=total,
        lines=counted(counts, "of"),
        happens=list(_HAPPENS[event]),
        doubles=_doubles(event, sent),
        seen_at=seen_at,
        seen=seen,
        left_out=left_out,
    )


def _doubles(event: StubEvent, sent: int) -> list[str]:
    if event is StubEvent.VOID:
        return []
    if not sent:
        return ["None of them was sent before: nothing can double."]
    return [
        f"{sent:,} of them were sent before.",
        "A group that has consumed the message skips it: its consume log knows it.",
        "A consumer without a consume log handles it once more.",
    ]


def _place(topic: str, groups: str) -> str:
    named = groups_of(groups)
    return f"topic {topic}, for {', '.join(named)}" if named else f"topic {topic}, for no group"


def _rows(sources: ConsoleSources, chosen: Chosen) -> list[Mapping[str, Any]]:
    with sources.reading(chosen.database) as (database, connection):
        stub = database.stubs.c
        wanted = select(
            *(stub.message_id, stub.topic, stub.required_groups),
            *(stub.status, stub.count, stub.update_date),
        ).where(stub.message_id.in_(chosen.ids))
        return [dict(row._mapping) for row in connection.execute(wanted)]


def _parts(
    sources: ConsoleSources, sealed: Sealed, order: Order, event: StubEvent
) -> Iterator[Part]:
    database = sources.databases[sealed.chosen.database]
    actions = OperatorActions(
        database, event, actor=order.actor, why=order.why, run_id=order.number
    )
    for seen in _seen_parts(sources, sealed, order, event):
        done = actions.change_seen(seen)
        refused = [each for each, changed in done.items() if not changed]
        why = actions.reasons(refused[:3])
        yield Part(
            {Outcome.DONE: len(done) - len(refused), Outcome.CHANGED: len(refused)},
            tuple(f"{each}: {text}" for each, text in why.items()),
        )


def _seen_parts(
    sources: ConsoleSources, sealed: Sealed, order: Order, event: StubEvent
) -> Iterator[Mapping[str, datetime]]:
    if sealed.chosen.ids:
        rows = iter(sealed.preview.seen.items())
        while part := dict(islice(rows, order.part_rows)):
            yield part
        return
    chosen = _selected(sources, sealed.chosen, event)
    yield from chosen.seen_pages(sealed.preview.seen_at, order.part_rows)


def _deed(event: StubEvent, title: str, role: Role) -> Deed:
    return Deed(
        name=f"stub-{event.value}",
        title=title,
        role=role,
        of_list=STUBS,
        look=lambda sources, chosen: _checked(_look(sources, chosen, event)),
        parts=lambda sources, sealed, order: _parts(sources, sealed, order, event),
        is_final=event is StubEvent.VOID,
    )


def _checked(preview: Preview) -> Preview:
    if not preview.total:
        why = f": {'; '.join(preview.left_out[:3])}" if preview.left_out else ""
        raise NothingToDo(
            f"no stub would be changed{why}. Without a status, only stubs that wait for a person"
            " are taken"
        )
    return preview


RETRY_STUBS = _deed(StubEvent.RETRY, "Send stubs again", Role.OPERATOR)
VOID_STUBS = _deed(StubEvent.VOID, "Void stubs", Role.ADMIN)
