"""The list of dead letters, from the brokers, with what the databases know of each."""

from typing import Any

from reliable_mq.console.lists import Field, ListColumn, ListPage, RowList, WantedPage
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.sql_pages import part_of
from reliable_mq.escalate.dead_letter import DeadLetter, DeadLetterFilter
from reliable_mq.escalate.thread_dead_letters import DeadLetterActions, of_application


def dead_letter_actions(sources: ConsoleSources) -> DeadLetterActions:
    """Return what reads and retries the dead letters of the application.

    Raises:
        ClusterNotAsked: no broker can be asked.
    """
    sources.check_cluster()
    return DeadLetterActions(sources.databases, sources.broker, sources.client_settings)


def dead_letter_id(dead_letter: DeadLetter) -> str:
    """Return the text by which a form names a dead letter. A group's name has no space."""
    return f"{dead_letter.group} {dead_letter.message.message_id}"


def matching(
    sources: ConsoleSources, wanted: WantedPage, *, everything: bool
) -> tuple[list[DeadLetter], int]:
    """Return the dead letters that a filter matches, the newest first.

    Without a group and `all_groups`, only those of the application's groups and messages; the
    number says how many were left out.
    """
    asked = DeadLetterFilter(
        group=wanted.text("group"),
        topic=wanted.text("topic"),
        key=wanted.text("key"),
        since=wanted.values.get("since"),
        until=wanted.values.get("until"),
        reason=wanted.text("reason_holds"),
    )
    found = dead_letter_actions(sources).matching(asked, everything=everything)
    everybody = bool(asked.group or wanted.values.get("all_groups"))
    own = found if everybody else of_application(found, sources.found.groups)
    ordered = sorted(own, key=lambda each: (each.time, dead_letter_id(each)), reverse=True)
    return ordered, len(found) - len(own)


def _page(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    found, others = matching(sources, wanted, everything=bool(wanted.values.get("also_settled")))
    page, after = part_of([_row(each) for each in found], wanted.cursor, wanted.limit)
    left = f"{others} dead letters of other applications are left out: see More conditions"
    return ListPage(page, after, notes=(left,) if others else ())


def _row(dead_letter: DeadLetter) -> dict[str, Any]:
    message = dead_letter.message
    return {
        "id": dead_letter_id(dead_letter),
        "message_id": message.message_id,
        "consumer_group": dead_letter.group,
        "topic": dead_letter.topic,
        "tag": message.tag,
        "key": " ".join(message.keys),
        "keys": list(message.keys),
        "time": dead_letter.time,
        "state": dead_letter.status,
        "reason": dead_letter.reason,
    }


DEAD_LETTERS = RowList(
    name="dead-letters",
    title="Dead letters",
    summary="Messages that consumer groups have given up, the newest first.",
    empty="No dead letter waits for a person here. Settled ones: see More conditions.",
    columns=(
        ListColumn("message_id", "Message", "message"),
        ListColumn("consumer_group", "Group"),
        ListColumn("topic", "Topic"),
        ListColumn("key", "Key"),
        ListColumn("time", "Given up", "time"),
        ListColumn("state", "State", "state"),
        ListColumn("reason", "Reason", "long"),
    ),
    fields=(
        Field("group", "Consumer group"),
        Field("topic", "Topic"),
        Field("key", "Message key"),
        Field("reason_holds", "Reason holds"),
        Field("since", "Since", "moment", hint="-1h or a UTC time"),
        Field("until", "Until", "moment", hint="-5m or a UTC time"),
        Field("also_settled", "Also retried, voided or consumed since", "flag"),
        Field("all_groups", "Also of other applications", "flag"),
    ),
    page=_page,
    id_of=lambda row: str(row["id"]),
)
