"""The options that select stubs, the same for every verb."""

from enum import StrEnum
from typing import Annotated

import typer

from reliable_mq.cli.printing import window_of
from reliable_mq.database.row_values import StubStatus
from reliable_mq.escalate.stub_filter import StubFilter


class StatusChoice(StrEnum):
    """The statuses, as they are typed."""

    UNCONFIRMED = "unconfirmed"
    CONFIRMED = "confirmed"
    VOIDED = "voided"


def stub_filter(
    *,
    status: Annotated[
        StatusChoice | None, typer.Option(case_sensitive=False, help="Only in this status.")
    ] = None,
    escalated: Annotated[
        bool, typer.Option("--escalated", help="Only those that wait for a person.")
    ] = False,
    topic: Annotated[str, typer.Option(help="Only of this topic.")] = "",
    tag: Annotated[str, typer.Option(help="Only with this tag.")] = "",
    key: Annotated[str, typer.Option(help="Only with this message key.")] = "",
    ordering_key: Annotated[str, typer.Option(help="Only with this ordering key.")] = "",
    group: Annotated[
        str, typer.Option(help="Only stubs that this group must consume and has not.")
    ] = "",
    since: Annotated[str, typer.Option(help="Only written since: ISO time (UTC), or -1h.")] = "",
    until: Annotated[str, typer.Option(help="Only written before: ISO time (UTC), or -1h.")] = "",
    note_holds: Annotated[
        str, typer.Option("--note-holds", help="Only with this text in the note.")
    ] = "",
    correlation_id: Annotated[str, typer.Option(help="Only with this correlation id, whole.")] = "",
) -> StubFilter:
    """Return the filter from the options.

    Raises:
        ConfigurationError: a time cannot be read.
    """
    begin, end = window_of(since, until)
    return StubFilter(
        status=StubStatus[status.name] if status is not None else None,
        escalated=escalated or None,
        topic=topic,
        tag=tag,
        key=key,
        ordering_key=ordering_key,
        group=group,
        since=begin,
        until=end,
        note=note_holds,
        correlation_id=correlation_id,
    )
