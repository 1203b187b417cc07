"""What a person lets be done to findings of a run: repair them, or void their stubs.

As `reliable-mq reconcile --repair` and its `--void` do, by the same plan and the same transactions.
A repair is of a message: of its stub. What has changed since the run is left as it is.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import islice

from reliable_mq.console.deeds import Chosen, Deed, NothingToDo, Preview, Sealed, counted
from reliable_mq.console.list_runs import FINDINGS
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.sql_findings import (
    Plan,
    PlannedRepair,
    Row,
    check_count,
    planned_pages,
    run_of,
)
from reliable_mq.console.users import Role
from reliable_mq.console.work import Order, Outcome, Part
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.reconcile.repairs.repair import (
    AGAIN,
    VOIDABLE,
    FindingChoice,
    Repair,
    RepairAction,
    RepairRate,
    plan,
)
from reliable_mq.reconcile.repairs.sql_obstacles import GONE, MOVED, SETTLED
from reliable_mq.reconcile.repairs.sql_repair import RepairOrder, RepairOutcome, repair_all

_VERBS = {
    RepairAction.RESEND: "send again",
    RepairAction.RELEASE: "take from an attempt that has ended, and send again",
    RepairAction.MARK: "mark as stored by the broker",
    RepairAction.CONFIRM: "confirm",
    RepairAction.VOID: "void",
}
_AGAIN_HAPPENS = (
    "A stub that is sent again is due at once. A scheduler sends it, to every group of its topic.",
)
_HAPPENS = {
    RepairAction.RESEND: _AGAIN_HAPPENS,
    RepairAction.RELEASE: _AGAIN_HAPPENS,
    RepairAction.MARK: (
        "A stub that is marked gets the broker, queue and offset of its record: nothing is sent.",
    ),
    RepairAction.CONFIRM: (
        "A stub that is confirmed is settled, as every group that it needs has consumed it.",
    ),
    RepairAction.VOID: (
        "A stub that is voided is sent no more, and nothing waits for it.",
        "It is left alone if a group has consumed it, is handling it, or may still consume it.",
    ),
}
_DOUBLES = [
    "A group that has consumed the message skips it: its consume log knows it.",
    "A consumer without a consume log handles it once more.",
]
_CHANGED = frozenset({MOVED, SETTLED, GONE})


def _plan_safe(rows: Sequence[Row]) -> Iterator[Repair]:
    return plan(rows)


def _plan_void(rows: Sequence[Row]) -> Iterator[Repair]:
    return plan([row for row in rows if row["verdict"] in VOIDABLE], FindingChoice(void=VOIDABLE))


def _look(planning: Plan) -> Callable[[ConsoleSources, Chosen], Preview]:
    def look(sources: ConsoleSources, chosen: Chosen) -> Preview:
        run = run_of(sources, chosen)
        check_count(sources, chosen)
        seen_at = utc_datetime(sources.databases[chosen.database].clock.measured_now())
        places, without = Counter[str](), Counter[str]()
        actions: set[RepairAction] = set()
        seen: dict[str, datetime] = {}
        changed = 0
        for page in planned_pages(sources, chosen, run, planning):
            ready = [each for each in page.repairs if each.is_as_judged]
            changed += len(page.repairs) - len(ready)
            without += page.without
            places += Counter(map(_place, ready))
            actions |= {each.repair.action for each in ready}
            if chosen.ids:
                seen |= {each.repair.message_id: each.changed_at for each in ready}
        left_out = [f"{number:,} {name}: not by this action" for name, number in without.items()]
        if changed:
            left_out.append(f"{changed:,} whose stub has changed since the run: left as they are")
        if not places:
            raise NothingToDo(f"nothing would be done: {'; '.join(left_out)}")
        happens = (line for each in RepairAction if each in actions for line in _HAPPENS[each])
        return Preview(
            total=places.total(),
            lines=counted(places, "messages to"),
            happens=[*dict.fromkeys(happens)],
            doubles=_DOUBLES if actions & {*AGAIN} else [],
            seen_at=seen_at,
            seen=seen,
            left_out=left_out,
        )

    return look


def _place(planned: PlannedRepair) -> str:
    repair = planned.repair
    groups = ", ".join(each for each in repair.groups if each)
    readers = f"group {groups}" if groups else "no group"
    return f"{_VERBS[repair.action]}: topic {planned.topic}, {readers}"


def _parts(planning: Plan) -> Callable[[ConsoleSources, Sealed, Order], Iterator[Part]]:
    def parts(sources: ConsoleSources, sealed: Sealed, order: Order) -> Iterator[Part]:
        chosen, preview = sealed.chosen, sealed.preview
        run = run_of(sources, chosen)
        repairs = (
            each.repair
            for page in planned_pages(sources, chosen, run, planning)
            for each in page.repairs
            if each.is_as_judged
            and (not chosen.ids or preview.seen.get(each.repair.message_id) == each.changed_at)
        )
        databases = sources.databases.values()
        carried_out = RepairOrder(
            urls=[each.url.render_as_string(hide_password=False) for each in databases],
            prefix=sources.databases[chosen.database].prefix,
            run_id=run.run_id,
            past=run.past,
            actor=order.actor,
            why=order.why,
            work=order.number,
            rate=RepairRate(order.rate),
        )
        outcomes = repair_all(carried_out, repairs)
        while part := [*islice(outcomes, order.part_rows)]:
            yield _part(part)

    return parts


def _part(outcomes: Sequence[RepairOutcome]) -> Part:
    counts = Counter[Outcome](map(_outcome, outcomes))
    lines = [f"{each.repair.message_id}: {each.outcome}" for each in outcomes if not each.changed]
    return Part(dict(counts), tuple(lines[:3]))


def _outcome(each: RepairOutcome) -> Outcome:
    if each.changed:
        return Outcome.DONE
    return Outcome.CHANGED if each.outcome in _CHANGED else Outcome.REFUSED


REPAIR_FINDINGS = Deed(
    name="finding-repair",
    title="Repair findings",
    role=Role.OPERATOR,
    of_list=FINDINGS,
    look=_look(_plan_safe),
    parts=_parts(_plan_safe),
)
VOID_FINDINGS = Deed(
    name="finding-void",
    title="Void their messages",
    role=Role.ADMIN,
    of_list=FINDINGS,
    look=_look(_plan_void),
    parts=_parts(_plan_void),
    is_final=True,
)
