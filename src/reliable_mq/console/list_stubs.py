"""The list of stubs: the messages that transactions have committed, the newest first."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from reliable_mq.cli.found_headers import HEADER_LENGTH_MIN, HEADER_STUBS
from reliable_mq.console.lists import (
    Field,
    FilterFault,
    ListColumn,
    ListPage,
    RowList,
    WantedPage,
    number_of,
)
from reliable_mq.console.search import TEXT_LENGTH_MAX
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.database.row_values import StubStatus
from reliable_mq.errors import UsageError
from reliable_mq.escalate.sql_stub_list import SqlStubList
from reliable_mq.escalate.stub_filter import StubFilter, without_masked
from reliable_mq.outbox.stub import groups_of

NOT_LISTED = (
    "Stubs of an older release are not in this list, nor those of plain SQL without the column"
    " correlation_id."
)


def stub_filter_of(sources: ConsoleSources, wanted: WantedPage) -> StubFilter:
    """Return the filter of stubs that the fields of a page name.

    Raises:
        FilterFault: it names a correlation id, and those are masked.
    """
    status = wanted.text("status")
    found = StubFilter(
        status=StubStatus[status.upper()] if status else None,
        escalated=wanted.values.get("escalated"),
        topic=wanted.text("topic"),
        tag=wanted.text("tag"),
        key=wanted.text("key"),
        ordering_key=wanted.text("ordering_key"),
        group=wanted.text("group"),
        since=wanted.values.get("since"),
        until=wanted.values.get("until"),
        note=wanted.text("note_holds"),
        correlation_id=wanted.text("correlation_id"),
    )
    try:
        return without_masked(found, sources.mq.topics, sources.mq._declared.sensitive_of)
    except UsageError as error:
        raise FilterFault(str(error)) from error


def _page(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    before = number_of(wanted.cursor)
    chosen = stub_filter_of(sources, wanted)
    with sources.reading(wanted.database) as (database, connection):
        stubs = SqlStubList(database.stubs, database.logs, chosen)
        rows, last = stubs.newest_before(connection, before, wanted.limit)
    notes, leads = _not_listed(chosen.correlation_id)
    place = "" if last is None else str(last)
    return ListPage([_row(row) for row in rows], place, notes=notes, leads=leads)


def _not_listed(text: str) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Return which stubs of a correlation id the list lacks, and what leads to them."""
    if not text:
        return (), ()
    is_searched = HEADER_LENGTH_MIN <= len(text) <= TEXT_LENGTH_MAX
    says = f"Search for them in the newest {HEADER_STUBS:,} stubs"
    lead = (says, f"/find?{urlencode({'q': text})}")
    return (NOT_LISTED,), (lead,) if is_searched else ()


def _row(row: Mapping[str, Any]) -> dict[str, Any]:
    is_parked = row["status"] == StubStatus.UNCONFIRMED.name and row["resend_time"] is None
    return {
        **row,
        "required_groups": list(groups_of(row["required_groups"])),
        "state": "WAITS FOR A PERSON" if is_parked else row["status"],
    }


STUBS = RowList(
    name="stubs",
    title="Stubs",
    summary="Messages that transactions have committed, the newest first.",
    empty=(
        "No stub matches. Take a condition away, or look in another database. Settled stubs are "
        "removed after their retention time."
    ),
    columns=(
        ListColumn("message_id", "Message", "message"),
        ListColumn("state", "State", "state"),
        ListColumn("topic", "Topic", "topic"),
        ListColumn("message_key", "Key"),
        ListColumn("required_groups", "Groups", "words"),
        ListColumn("create_date", "Committed", "time"),
        ListColumn("count", "Sends", "number"),
        ListColumn("resend_time", "Next send", "time"),
        ListColumn("note", "Note", "long"),
    ),
    fields=(
        Field("escalated", "Waits for a person", "flag"),
        Field("status", "Status", "choice", tuple(each.name.lower() for each in StubStatus)),
        Field("topic", "Topic"),
        Field("key", "Message key"),
        Field("group", "Group that has not consumed"),
        Field("since", "Since", "moment", hint="-1h or a UTC time"),
        Field("until", "Until", "moment", hint="-5m or a UTC time"),
        Field("tag", "Tag"),
        Field("ordering_key", "Ordering key"),
        Field("correlation_id", "Correlation id"),
        Field("note_holds", "Note holds"),
    ),
    page=_page,
    of_database=True,
    id_of=lambda row: str(row["message_id"]),
)
