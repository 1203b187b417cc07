"""The options by which a person says what is meant, the same for every verb; those of stubs."""

import inspect
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any

import typer

from reliable_mq.cli.printing import moment_of
from reliable_mq.outbox.stub import StubStatus
from reliable_mq.resend.stub_filter import StubFilter


class Wanted(StrEnum):
    """The statuses, as one types them."""

    UNCONFIRMED = "unconfirmed"
    CONFIRMED = "confirmed"
    VOIDED = "voided"


def stub_filter(
    *,
    status: Annotated[Wanted | None, typer.Option(help="Only these.")] = None,
    escalated: Annotated[
        bool, typer.Option("--escalated", help="Only those that wait for a person.")
    ] = False,
    topic: Annotated[str, typer.Option(help="Only of this topic.")] = "",
    tag: Annotated[str, typer.Option(help="Only with this tag.")] = "",
    key: Annotated[str, typer.Option(help="Only with this message key.")] = "",
    ordering_key: Annotated[str, typer.Option(help="Only with this ordering key.")] = "",
    group: Annotated[
        str, typer.Option(help="Only those that this group must consume and has not.")
    ] = "",
    since: Annotated[str, typer.Option(help="Only written since: ISO time (UTC), or -1h.")] = "",
    until: Annotated[str, typer.Option(help="Only written before: ISO time (UTC), or -1h.")] = "",
    note_holds: Annotated[
        str, typer.Option("--note-holds", help="Only with this text in the note.")
    ] = "",
) -> StubFilter:
    """Return the filter that the options say.

    Raises:
        ConfigurationError: when a time does not read.
    """
    return StubFilter(
        status=StubStatus[status.name] if status is not None else None,
        escalated=escalated,
        topic=topic,
        tag=tag,
        key=key,
        ordering_key=ordering_key,
        group=group,
        since=moment_of(since, "--since"),
        until=moment_of(until, "--until"),
        note=note_holds,
    )


def takes_filter(
    read: Callable[..., object],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of `read`; what `read` makes of them is its parameter `wanted`.

    Args:
        read: takes options by name, as `stub_filter` does.
    """
    of_filter = inspect.signature(read).parameters

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command).parameters

        @wraps(command)
        def called(**given: Any) -> None:
            wanted = read(**{name: given.pop(name) for name in of_filter})
            command(wanted=wanted, **given)

        named = [
            each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for each in (*own.values(), *of_filter.values())
            if each.name != "wanted"
        ]
        # Both are read by typer.
        called.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in named}
        return called

    return decorated
