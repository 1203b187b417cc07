"""The list of dead letters, from the brokers, with what the databases know of each."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from reliable_mq.console.lists import (
    Field,
    ListColumn,
    ListPage,
    RowList,
    WantedPage,
    no_place,
)
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.escalate.dead_letter import DeadLetter, DeadLetterFilter
from reliable_mq.escalate.thread_dead_letters import DeadLetterActions, of_application

_TIME_MS_MAX = 32_503_680_000_000
"""The year 3000."""


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
    sources: ConsoleSources,
    wanted: WantedPage,
    *,
    everything: bool,
    enough: Callable[[list[DeadLetter]], bool] | None = None,
    newer_than: datetime | None = None,
) -> tuple[list[DeadLetter], int]:
    """Return the dead letters that a filter matches, the newest first.

    Without a group and `all_groups`, only those of the application's groups and messages; the
    number says how many were left out. `enough` and `newer_than`: see `DeadLetterActions`.
    """
    asked = DeadLetterFilter(
        group=wanted.text("group"),
        topic=wanted.text("topic"),
        key=wanted.text("key"),
        since=wanted.values.get("since"),
        until=wanted.values.get("until"),
        reason=wanted.text("reason_holds"),
    )
    groups = sources.found.groups
    everybody = bool(asked.group or wanted.values.get("all_groups"))

    def own(found: list[DeadLetter]) -> list[DeadLetter]:
        return found if everybody else of_application(found, groups)

    found = dead_letter_actions(sources).matching(
        asked,
        everything=everything,
        enough=None if enough is None else lambda known: enough(own(known)),
        newer_than=newer_than,
    )
    ordered = sorted(own(found), key=_key, reverse=True)
    return ordered, len(found) - len(ordered)


def _key(dead_letter: DeadLetter) -> tuple[int, str]:
    return dead_letter.message.store_time_ms, dead_letter_id(dead_letter)


def _page(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    """Read the newest ones: further back only until a page is full."""
    before = _place(wanted.cursor)

    def behind(found: list[DeadLetter]) -> list[DeadLetter]:
        return found if before is None else [each for each in found if _key(each) < before]

    found, others = matching(
        sources,
        wanted,
        everything=bool(wanted.values.get("also_settled")),
        enough=lambda found: len(behind(found)) > wanted.limit,
        newer_than=_moment(before, wanted.values.get("until")),
    )
    rest = behind(found)
    page = rest[: wanted.limit]
    after = json.dumps(_key(page[-1]), ensure_ascii=False) if len(rest) > len(page) else ""
    left = f"at least {others} dead letters of other applications are left out: see More conditions"
    return ListPage([_row(each) for each in page], after, notes=(left,) if others else ())


def _place(cursor: str) -> tuple[int, str] | None:
    """Return the key of the last row of the page before; None: there is none.

    Raises:
        FilterFault: the cursor is no place in this list.
    """
    if not cursor:
        return None
    try:
        time_ms, text = json.loads(cursor)
    except (ValueError, TypeError, RecursionError) as error:
        raise no_place(cursor) from error
    if type(time_ms) is not int or type(text) is not str or not 0 <= time_ms <= _TIME_MS_MAX:
        raise no_place(cursor)
    return time_ms, text


def _moment(before: tuple[int, str] | None, until: datetime | None) -> datetime | None:
    if before is None:
        return until
    return datetime.fromtimestamp(before[0] / 1000, UTC)


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
    is_read_at_once=True,
    id_of=lambda row: str(row["id"]),
)
