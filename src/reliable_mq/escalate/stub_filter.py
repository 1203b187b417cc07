"""The filter by which a person selects stubs. Pure values; `sql_stub_list` makes SQL of them."""

from collections.abc import Callable, Iterable
from datetime import datetime

import msgspec

from reliable_mq.database.row_values import StubStatus
from reliable_mq.errors import UsageError
from reliable_mq.outbox.correlation import SPELLINGS
from reliable_mq.sensitive import SensitiveFields


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
        escalated: only those that wait for a person, which the scheduler no longer sends; False:
            only the others.
        topic: only those of this topic.
        tag: only those with this tag.
        key: only those with this message key.
        ordering_key: only those with this ordering key.
        group: only those that this consumer group must consume and has not consumed.
        since: only those written at this time or later.
        until: only those written before this time.
        note: only those with this text in their note. Capital and small letters differ.
        correlation_id: only those with this correlation id.
        hidden_topics: with a correlation id: none of these topics, whose headers are masked.
    """

    status: StubStatus | None = None
    escalated: bool | None = None
    topic: str = ""
    tag: str = ""
    key: str = ""
    ordering_key: str = ""
    group: str = ""
    since: datetime | None = None
    until: datetime | None = None
    note: str = ""
    correlation_id: str = ""
    hidden_topics: tuple[str, ...] = ()

    @property
    def is_open(self) -> bool:
        """Whether the filter has no condition, so that every stub matches."""
        return self == StubFilter()


def without_masked(
    wanted: StubFilter, topics: Iterable[str], sensitive_of: Callable[[str], SensitiveFields]
) -> StubFilter:
    """Return a filter that finds no stub by a correlation id that is masked.

    A match would say that a guess is right.

    Args:
        wanted: the filter of a person.
        topics: those that the application declares.
        sensitive_of: returns the sensitive fields of a topic; those of "" are those of all others.

    Raises:
        UsageError: the correlation ids of all topics are masked.
    """
    text = wanted.correlation_id
    if not text:
        return wanted
    if is_correlation_masked(sensitive_of(""), text):
        raise UsageError("correlation ids are masked by the setting `sensitive`: none is looked up")
    hidden = [each for each in topics if is_correlation_masked(sensitive_of(each), text)]
    return msgspec.structs.replace(wanted, hidden_topics=tuple(sorted(hidden)))


def is_correlation_masked(fields: SensitiveFields, text: str) -> bool:
    """Return whether a topic with these fields masks a header that has this correlation id."""
    given = dict.fromkeys(SPELLINGS, text)
    return bool(fields) and fields.masked_headers(given) != given
