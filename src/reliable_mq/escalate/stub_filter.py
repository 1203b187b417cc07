"""The filter by which a person selects stubs. Pure values; `sql_stub_list` makes SQL of them."""

from datetime import datetime

import msgspec

from reliable_mq.database.row_values import StubStatus


def status_text(value: int) -> str:
    """Return the name of a stub's status. A value that we do not know is shown as a number."""
    try:
        return StubStatus(value).name
    except ValueError:
        return f"status {value}"


class StubFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for stubs: all conditions must hold. An empty or None field is no condition.

    Attributes:
        status: only those in this status.
        escalated: only those that wait for a person. The scheduler no longer sends them.
        topic: only those of this topic.
        tag: only those with this tag.
        key: only those with this message key.
        ordering_key: only those with this ordering key.
        group: only those that this consumer group must consume and has not consumed.
        since: only those written at this time or later.
        until: only those written before this time.
        note: only those with this text in their note. Capital and small letters differ.
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
        """Whether the filter has no condition, so that every stub matches."""
        return self == StubFilter()
