"""The options of messages: their types, and what is said of an option that there is not. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Generic, TypedDict, TypeVar, get_type_hints

from reliable_mq.misspelt import NameUnknown, meant

T = TypeVar("T")


class ContentOptions(TypedDict, total=False):
    """Options that say what is sent; `contents_of` reads them. See `Transaction.send`."""

    tag: str
    key: object
    ordering_key: object
    properties: Mapping[str, str] | None
    content_type: str
    correlation_id: object
    message_id: str


class MessageOptions(ContentOptions, total=False):
    """Options of a message to send; see `Transaction.send`."""

    delay: timedelta | None
    deliver_at: datetime | None


class StubOptions(MessageOptions, total=False):
    """Options of a message with a stub."""

    required_groups: tuple[str, ...] | None


class ManyOptions(TypedDict, Generic[T], total=False):
    """Options of many messages at once: one value for all, or a function of the payload."""

    tag: str | Callable[[T], str]
    key: object | Callable[[T], object]
    ordering_key: object | Callable[[T], object]
    delay: timedelta | Callable[[T], timedelta | None] | None
    deliver_at: datetime | Callable[[T], datetime | None] | None
    properties: Mapping[str, str] | Callable[[T], Mapping[str, str] | None] | None
    content_type: str | Callable[[T], str]
    correlation_id: object | Callable[[T], object]
    message_id: Callable[[T], str]
    required_groups: tuple[str, ...] | None


_OPTIONS = sorted(get_type_hints(StubOptions))
_KNOWN_OPTIONS = frozenset(_OPTIONS)
_DATABASE_WORDS = ("database", "db", "using")


def check_options(given: Iterable[str], *own: str) -> None:
    """Check the names of a message's options.

    Args:
        given: the names.
        *own: names of options that the caller has itself, for the hint.

    Raises:
        NameUnknown: one of them is not known.
    """
    if not _KNOWN_OPTIONS.issuperset(given):  # asked for each message
        raise no_option(min(set(given).difference(_KNOWN_OPTIONS)), own)


def no_option(name: str, own: Collection[str] = ()) -> NameUnknown:
    """Return the error of an option that there is not; `own` are options of the caller itself."""
    how = meant(name, [*_OPTIONS, *own])
    if name in _DATABASE_WORDS and not own:
        how = ": a transaction has one database, mq.transaction(database=…)"
    return NameUnknown(f"send has no option {name}{how}")
