"""Which stubs a person means. Pure values; `sql_stub_list` makes conditions of them."""

from datetime import datetime

import msgspec

from reliable_mq.database.row_values import StubStatus


def status_text(value: int) -> str:
    """Return the name of a stub's status; what nobody of us wrote is shown as it is."""
    try:
        return StubStatus(value).name
    except ValueError:
        return f"status {value}"


class StubFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Stubs that fit all that is given.

    Attributes:
        status: only those in this status.
        escalated: only those that wait for a person: nothing is done with them by itself any more.
        topic: only those of this topic.
        tag: only those with this tag.
        key: only those with this message key.
        ordering_key: only those with this ordering key.
        group: only those that this consumer group must consume and has not.
        since: only those written at this time or later.
        until: only those written before.
        note: only those whose note holds this text; letters are as they are.
    """

    status: StubStatus | None = None
    escalated: bool = False
    topic: str = ""
    tag: str = ""
    key: str = ""
    ordering_key: str = ""
    group: str = ""
    since: datetime | None = None
    until: datetime | None = None
    note: str = ""

    @property
    def is_open(self) -> bool:
        """Whether nothing is given, so that every stub fits."""
        return self == StubFilter()
