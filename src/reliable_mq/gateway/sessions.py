"""Clients by their ids: what they are, what they want, and what they are told to do. Pure.

A client tells its settings on a Telemetry stream, and gets them back, completed. From then on it is
known by the id in the headers of its calls, and by the user who signs them; if nobody does, by its
address. The same id with another user or address is another client.
Source: Apache RocketMQ `GrpcClientSettingsManager`, `ClientActivity`.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

from reliable_mq.errors import InvariantBroken
from reliable_mq.gateway.acting import ACTING, Acting, acting_name, payer
from reliable_mq.gateway.codes import ClientKind, Code, RpcRefused
from reliable_mq.gateway.group_policy import GroupPolicy
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.renewals import Held
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX

BATCH_SIZE = 32
POLL_SECONDS = 20
SILENT_SECONDS = 120.0
SESSIONS_MAX = 50_000
SESSIONS_OF_ONE_MAX = 25_000
"""The most clients of one user; if nobody signs, of one address."""
NAMES_MAX = 1_000
"""The most topics that one client may name in its settings."""
PROPERTIES_MAX, PROPERTIES_SIZE_MAX = 32, 4096
SETTINGS_SIZE_MAX = 64 * 1024
"""The most bytes of the settings of one client,"""
SETTINGS_SIZES_MAX = 64 * 1024 * 1024
"""and of all clients together,"""
SETTINGS_SIZES_OF_ONE_MAX = 32 * 1024 * 1024
"""and of those of one user or address."""

_PRODUCER_ATTEMPTS = 3
_PRODUCER_BACKOFF = (10, 1_000, 2.0)  # first and longest wait in ms, and the factor


class TelemetryStream(Protocol):
    """The way to a client."""

    @property
    def is_open(self) -> bool:
        """Whether commands reach the client."""

    def write(self, message: Any) -> None:
        """Send a command."""

    def close(self) -> None:
        """End the stream."""


class Session:
    """One client."""

    __slots__ = (
        *("client_id", "group", "held", "kind", "policy", "seen_at", "settings", "stream"),
        *("acting", "began_ms", "host", "language", "payer", "topics", "user", "version"),
    )

    def __init__(self, client_id: str, settings: Any) -> None:
        self.client_id = client_id
        self.user, self.payer = acting_name(), payer()
        acting = ACTING.get()
        self.host = acting.host if acting is not None else ""
        """Its address when it came."""
        self.settings = settings
        self.kind = ClientKind.UNSPECIFIED
        self.topics: frozenset[str] = frozenset()
        self.group = ""
        self.policy = GroupPolicy()
        self.stream: TelemetryStream | None = None
        self.seen_at = 0.0
        self.began_ms = 0
        self.language = self.version = ""
        self.acting: Acting | None = None
        """As whom its messages are renewed."""
        self.held: dict[tuple[str, str, str], Held] = {}
        """What a push consumer has, by group, message id and the handle that it knows."""

    @property
    def is_connected(self) -> bool:
        """Whether commands reach the client."""
        return self.stream is not None and self.stream.is_open


class Sessions:
    """All clients.

    Invariant: `_size` and `_sizes` are those of their settings, `_counts` their number by payer;
    all are bounded.
    """

    def __init__(self) -> None:
        self._by_id: dict[tuple[tuple[str, str], str], Session] = {}  # by payer and id
        self._size = 0
        self._counts: Counter[tuple[str, str]] = Counter()
        self._sizes: Counter[tuple[str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_id.values()))

    def find(self, client_id: str) -> Session | None:
        """Return a client of the user, or the address, for whom the running task works."""
        return self._by_id.get((payer(), client_id))

    def put(self, client_id: str, settings: Any, now: float) -> Session:
        """Note the settings of a client.

        Raises:
            RpcRefused: when they say nothing, or there are too many clients.
        """
        which = settings.WhichOneof("pub_sub")
        if which is None:
            raise RpcRefused(
                Code.BAD_REQUEST, "there is no publishing or subscription data in settings"
            )
        _check_properties(settings.client_properties)
        size = settings.ByteSize()
        names = _topics_of(settings)
        if size > SETTINGS_SIZE_MAX or len(names) > NAMES_MAX:
            raise RpcRefused(
                Code.BAD_REQUEST,
                f"settings have at most {NAMES_MAX} topics and {SETTINGS_SIZE_MAX} bytes",
            )
        session = self.find(client_id)
        more = size - (session.settings.ByteSize() if session is not None else 0)
        one = session.payer if session is not None else payer()
        self._check_room(one, is_new=session is None, more=more)
        if session is None:
            session = Session(client_id, settings)
            self._by_id[session.payer, client_id] = session
            self._counts[one] += 1
        self._size += more
        self._sizes[one] += more
        session.settings, session.seen_at = settings, now
        if which == "publishing":
            session.kind, session.group = ClientKind.PRODUCER, ""
        else:
            session.kind = _consumer_kind(settings)
            session.group = settings.subscription.group.name
        session.topics = frozenset(names)
        return session

    def _check_room(self, one: tuple[str, str], *, is_new: bool, more: int) -> None:
        """Refuse settings for which there is no room."""
        who = f"user {one[0]}" if one[0] else f"address {one[1]}"
        is_full = is_new and self._counts[one] >= SESSIONS_OF_ONE_MAX
        if is_full or self._sizes[one] + more > SETTINGS_SIZES_OF_ONE_MAX:
            raise RpcRefused(
                Code.TOO_MANY_REQUESTS, f"{who} has {self._counts[one]} clients, with settings"
            )
        is_full = is_new and len(self._by_id) >= SESSIONS_MAX
        if is_full or self._size + more > SETTINGS_SIZES_MAX:
            raise RpcRefused(
                Code.TOO_MANY_REQUESTS, f"{len(self._by_id)} clients are connected, with settings"
            )

    def drop(self, session: Session) -> None:
        """Forget a client."""
        if self._by_id.pop((session.payer, session.client_id), None) is None:
            return
        size = session.settings.ByteSize()
        self._size -= size
        self._sizes[session.payer] -= size
        self._counts[session.payer] -= 1
        if not self._counts[session.payer]:
            del self._counts[session.payer], self._sizes[session.payer]

    def invariants(self) -> None:
        """Check the sizes and the counts.

        Raises:
            InvariantBroken: when they are not those of all settings.
        """
        size = sum(each.settings.ByteSize() for each in self._by_id.values())
        if size != self._size:
            raise InvariantBroken(f"settings of {size} bytes, not {self._size}")
        counts = Counter(each.payer for each in self._by_id.values())
        if counts != self._counts or self._sizes.total() != size:
            raise InvariantBroken(f"{counts} clients, not {self._counts}")

    def silent(self, now: float) -> list[Session]:
        """Return the clients that have left without a word."""
        return [
            each
            for each in self._by_id.values()
            if not each.is_connected and now - each.seen_at > SILENT_SECONDS
        ]

    def producers_of(self, topic: str) -> list[Session]:
        """Return the connected clients that say that they send to a topic."""
        return [
            each
            for each in self._by_id.values()
            if each.kind is ClientKind.PRODUCER and topic in each.topics and each.is_connected
        ]

    def topics_of_producers(self) -> set[str]:
        """Return the topics to which connected producers send."""
        found: set[str] = set()
        for each in self._by_id.values():
            if each.kind is ClientKind.PRODUCER and each.is_connected:
                found |= each.topics
        return found


def _topics_of(settings: Any) -> list[str]:
    if settings.WhichOneof("pub_sub") == "publishing":
        return [each.name for each in settings.publishing.topics]
    return [each.topic.name for each in settings.subscription.subscriptions]


def _consumer_kind(settings: Any) -> ClientKind:
    kind = settings.client_type
    if kind in {ClientKind.PUSH_CONSUMER, ClientKind.SIMPLE_CONSUMER, ClientKind.PULL_CONSUMER}:
        return ClientKind(kind)
    return ClientKind.UNSPECIFIED


def _check_properties(found: Any) -> None:
    """Refuse properties of a client that are too many or too long."""
    size = sum(len(name) + len(value) for name, value in found.items())
    if len(found) > PROPERTIES_MAX or size > PROPERTIES_SIZE_MAX:
        raise RpcRefused(
            Code.INVALID_CLIENT_PROPERTIES,
            f"client properties: at most {PROPERTIES_MAX}, and {PROPERTIES_SIZE_MAX} bytes",
        )


def completed(session: Session) -> Any:
    """Return the settings of a client as it is to use them."""
    settings = TYPES["Settings"]()
    settings.CopyFrom(session.settings)
    backoff = settings.backoff_policy
    if session.kind is ClientKind.PRODUCER:
        backoff.max_attempts = _PRODUCER_ATTEMPTS
        _set_exponential(backoff.exponential_backoff, *_PRODUCER_BACKOFF)
        settings.publishing.validate_message_type = True
        settings.publishing.max_body_size = MESSAGE_BODY_SIZE_MAX
    else:
        policy = session.policy
        backoff.max_attempts = policy.retries + 1
        if policy.exponential is not None:
            _set_exponential(backoff.exponential_backoff, *policy.exponential)
        else:
            del backoff.customized_backoff.next[:]
            for delay_ms in policy.delays:
                set_duration_ms(backoff.customized_backoff.next.add(), delay_ms)
            backoff.customized_backoff.SetInParent()
        subscription = settings.subscription
        subscription.receive_batch_size = BATCH_SIZE
        subscription.long_polling_timeout.seconds = POLL_SECONDS
        subscription.fifo = policy.is_orderly
    settings.metric.on = False
    settings.metric.SetInParent()
    return settings


def set_duration_ms(duration: Any, ms: int) -> None:
    """Set a duration."""
    duration.seconds, duration.nanos = ms // 1000, ms % 1000 * 1_000_000


def ms_of(duration: Any) -> int:
    """Return a duration in milliseconds."""
    return int(duration.seconds) * 1000 + int(duration.nanos) // 1_000_000


def _set_exponential(backoff: Any, initial_ms: int, longest_ms: int, factor: float) -> None:
    set_duration_ms(backoff.initial, initial_ms)
    set_duration_ms(backoff.max, longest_ms)
    backoff.multiplier = factor
