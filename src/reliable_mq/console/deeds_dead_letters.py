"""What a person lets be done to dead letters: retry them, void their stubs, send a changed copy.

A retry is that of `reliable-mq dlq retry`, voiding that of `reliable-mq stub void`. A copy is a new
message of a transaction, together with its entry in the audit.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain, islice

from sqlalchemy import select

from reliable_mq.console.deeds import Chosen, Deed, NothingToDo, Preview, Sealed, counted
from reliable_mq.console.list_dead_letters import (
    DEAD_LETTERS,
    dead_letter_actions,
    dead_letter_id,
    matching,
)
from reliable_mq.console.lists import wanted_of
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.users import Role
from reliable_mq.console.work import Order, Outcome, Part
from reliable_mq.database.row_values import StubStatus
from reliable_mq.escalate.dead_letter import DeadLetter
from reliable_mq.escalate.sql_dead_letters import MEANWHILE
from reliable_mq.escalate.sql_operator_actions import OperatorActions
from reliable_mq.escalate.thread_dead_letters import AT_ONCE
from reliable_mq.outbox.stub import StubEvent


def _found(sources: ConsoleSources, chosen: Chosen) -> list[DeadLetter]:
    """Return the chosen dead letters that still wait for a person."""
    if chosen.ids:
        marked: dict[str, list[str]] = defaultdict(list)
        for each in chosen.ids:
            group, _, message_id = each.partition(" ")
            if group and message_id:
                marked[group].append(message_id)
        actions = dead_letter_actions(sources)  # a broker is asked for the marked groups only
        some = (actions.of_ids(ids, group) for group, ids in sorted(marked.items()))
        return actions.still_open([*chain.from_iterable(some)])
    wanted = wanted_of(DEAD_LETTERS, [*chosen.query.items()], list(sources.databases))
    return matching(sources, wanted, everything=False)[0]


def _place(dead_letter: DeadLetter) -> str:
    return f"topic {dead_letter.topic}, group {dead_letter.group}"


def _preview(
    found: Sequence[DeadLetter], chosen: Chosen, happens: list[str], doubles: list[str]
) -> Preview:
    if not found:
        raise NothingToDo("none of these dead letters waits for a person any more")
    gone = len(chosen.ids) - len(found)
    return Preview(
        total=len(found),
        lines=counted(Counter(map(_place, found)), "of"),
        happens=happens,
        doubles=doubles,
        # By the clock of the brokers: what is given up later was not seen.
        seen_at=max(each.time for each in found),
        seen={dead_letter_id(each): each.time for each in found} if chosen.ids else {},
        left_out=[f"{gone} of the marked ones wait for nobody any more"] if gone > 0 else [],
    )


def _look_retry(sources: ConsoleSources, chosen: Chosen) -> Preview:
    happens = [
        "Each goes to its own consumer group again, and to no other group, with new attempts.",
        "Its escalation is closed when the broker has taken it.",
    ]
    doubles = [
        "A group that has consumed the message meanwhile skips it: its consume log knows it.",
        "Effects that an attempt left outside of its database before it failed can happen again.",
    ]
    return _preview(_found(sources, chosen), chosen, happens, doubles)


def _seen(sources: ConsoleSources, sealed: Sealed) -> list[DeadLetter]:
    """Return those of a preview that have not changed since, oldest first."""
    preview = sealed.preview
    found = _found(sources, sealed.chosen)
    if sealed.chosen.ids:
        found = [each for each in found if preview.seen.get(dead_letter_id(each)) == each.time]
    else:
        found = [each for each in found if each.time <= preview.seen_at]
    return sorted(found, key=lambda each: (each.time, dead_letter_id(each)))


def _retry_parts(sources: ConsoleSources, sealed: Sealed, order: Order) -> Iterator[Part]:
    actions = dead_letter_actions(sources)
    rest = iter(_seen(sources, sealed))
    while part := [*islice(rest, min(AT_ONCE, order.part_rows))]:
        still = actions.still_open(part)
        outcome = actions.retry(still, actor=order.actor, why=order.why, work=order.number)
        left = {place: why for place, why in outcome.items() if why}
        taken = sum(why.startswith(MEANWHILE) for why in left.values())
        yield Part(
            {
                Outcome.DONE: len(outcome) - len(left),
                Outcome.CHANGED: len(part) - len(outcome) + taken,
                Outcome.REFUSED: len(left) - taken,
            },
            tuple(f"{group} {each}: {why}" for (group, each), why in left.items())[:3],
        )


RETRY_DEAD_LETTERS = Deed(
    name="dead-letter-retry",
    title="Deliver dead letters again",
    role=Role.OPERATOR,
    of_list=DEAD_LETTERS,
    look=_look_retry,
    parts=_retry_parts,
)


def _stubs_of(
    sources: ConsoleSources, dead_letters: Sequence[DeadLetter]
) -> dict[str, dict[str, datetime]]:
    """Return when the unconfirmed stubs of dead letters were last changed, by database and id."""
    ids = list(dict.fromkeys(each.message.message_id for each in dead_letters))
    found: dict[str, dict[str, datetime]] = defaultdict(dict)
    for name in sources.databases:
        for at in range(0, len(ids), AT_ONCE):
            with sources.reading(name) as (database, connection):
                stub = database.stubs.c
                wanted = select(stub.message_id, stub.update_date).where(
                    stub.message_id.in_(ids[at : at + AT_ONCE]),
                    stub.status == StubStatus.UNCONFIRMED.value,
                )
                found[name] |= {row[0]: row[1] for row in connection.execute(wanted)}
    return found


def _look_void(sources: ConsoleSources, chosen: Chosen) -> Preview:
    found = _found(sources, chosen)
    stubs = {each for some in _stubs_of(sources, found).values() for each in some}
    with_stub = [each for each in found if each.message.message_id in stubs]
    if found and not with_stub:
        raise NothingToDo("none of them has an unconfirmed stub in the databases of this console")
    happens = [
        "The stub of each is voided: the message is sent no more, and nothing waits for it.",
        "The dead letter stays at the broker, and this list shows it no more.",
        "If another group has consumed it, reconciliation finds it voided but consumed.",
    ]
    return _preview(with_stub, chosen, happens, [])


def _void_parts(sources: ConsoleSources, sealed: Sealed, order: Order) -> Iterator[Part]:
    rest = iter(_seen(sources, sealed))
    while part := [*islice(rest, min(AT_ONCE, order.part_rows))]:
        done: set[str] = set()
        with_stub: set[str] = set()
        for name, seen in _stubs_of(sources, part).items():
            with_stub |= seen.keys()
            if seen:
                actions = OperatorActions(
                    sources.databases[name],
                    StubEvent.VOID,
                    actor=order.actor,
                    why=order.why,
                    run_id=order.number,
                )
                done |= {each for each, changed in actions.change_seen(seen).items() if changed}
        count = sum(each.message.message_id in done for each in part)
        asked = sum(each.message.message_id in with_stub for each in part)
        yield Part({Outcome.DONE: count, Outcome.CHANGED: asked - count})


VOID_DEAD_LETTERS = Deed(
    name="dead-letter-void",
    title="Void their stubs",
    role=Role.ADMIN,
    of_list=DEAD_LETTERS,
    look=_look_void,
    parts=_void_parts,
    is_final=True,
)
