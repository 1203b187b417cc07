"""The declarations of an application: its managed topics and its consumers. Values only."""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import Any

from msgspec.structs import replace

from reliable_mq.consume.consumer import Consumer, plan_of, waits_of
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.idempotency.key_reading import KeySource, check_field, key_reader_of
from reliable_mq.limits import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX
from reliable_mq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, check_name, tags_of
from reliable_mq.outbox.cloud_events import Envelope
from reliable_mq.periodic.declaration import PeriodicMessage
from reliable_mq.sensitive import NAMES_MAX, SensitiveFields, checked_names
from reliable_mq.settings import Settings
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)


def _named(function: Callable[..., Any]) -> str:
    """Return a function as module.name."""
    name = getattr(function, "__qualname__", repr(function))
    return f"{getattr(function, '__module__', '')}.{name}".lstrip(".")


_WARNINGS_MAX = 1000
"""The most topics and tags that are warned of: millions of tags must not fill the memory."""
_SPARE_CONNECTIONS = 4
_PRODUCER_CONNECTIONS = 16
_KNOWN_MAX = 1000
"""The most topics and tags whose groups are kept in `known_groups`, for the same reason."""


class Declarations:
    """Topics, the groups that their messages must reach, and the handlers of this application.

    Invariant: a consumer group has one handler; a periodic message has a name of its own.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topics: dict[str, tuple[str, ...]] = {}
        self._with_named_groups: set[str] = set()
        self._named: set[str] = set()  # by `topic` or `periodic`, not only by a consumer or a send
        self._warned_of: set[tuple[str, str]] = set()
        self._consumers: dict[str, Consumer] = {}
        self._periodic: dict[str, PeriodicMessage] = {}
        self._sensitive: dict[str, frozenset[str]] = {}
        self._marked: dict[str, tuple[int, tuple[str, ...]]] = {}  # and the round of declarations
        #: the payload type that is sent to each topic, as declared
        self.sent: dict[str, Any] = {}
        #: the envelopes of topics that have one
        self.envelopes: dict[str, Envelope] = {}
        #: topic and tag -> the result of `required_groups`, until the next declaration
        self.known_groups: dict[tuple[str, str], tuple[str, ...]] = {}
        self._round = 0  # of declarations: an answer of an earlier round is not kept

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers, in the order of their declaration."""
        return tuple(
            replace(
                each,
                is_enveloped=each.topic in self.envelopes,
                has_declared_topic=each.topic in self._named,
            )
            for each in self._consumers.values()
        )

    @property
    def periodic(self) -> tuple[PeriodicMessage, ...]:
        """The periodic messages, in the order of their declaration."""
        return tuple(self._periodic.values())

    def add_periodic(self, message: PeriodicMessage) -> None:
        """Register a periodic message; see `ReliableMQ.periodic`.

        Raises:
            UsageError: there is one of that name.
        """
        if message.name in self._periodic:
            raise UsageError(
                f"there is a periodic message {message.name} already: give name=, a name of its own"
            )
        self._periodic[message.name] = message
        self._topics.setdefault(message.topic, ())
        self._named.add(message.topic)

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics that are declared, sent to by a transaction, or read by a consumer; sorted."""
        read = {each.topic for each in self._consumers.values()}
        return tuple(sorted(read.union(self._topics)))

    @property
    def groups(self) -> frozenset[str]:
        """The consumer groups that have a handler here, or that a declared topic must reach."""
        return frozenset(self._consumers).union(*self._topics.values())

    def connections_wanted(self, database: str) -> int:
        """Return how many connections this process may use at once to a database."""
        handlers = sum(each.concurrency for each in self.consumers if each.database == database)
        return max(handlers, _PRODUCER_CONNECTIONS) + _SPARE_CONNECTIONS

    def leases(self, databases: Iterable[str]) -> dict[str, dict[str, float]]:
        """Return the lease of each consumer group, seconds, by the name of its database."""
        return {
            name: {each.group: each.lease for each in self.consumers if each.database == name}
            for name in databases
        }

    def topic(
        self,
        name: str,
        groups: Sequence[str] | None,
        payload: Any = None,
        envelope: Envelope | None = None,
        sensitive: Sequence[str] = (),
    ) -> None:
        """See `ReliableMQ.topic`. A declaration that is refused changes nothing."""
        check_name("topic", name, TOPIC_LENGTH_MAX)
        if isinstance(groups, str):
            raise ConfigurationError(f"groups={groups!r}: a list of names is needed, [{groups!r}]")
        if groups is not None and not isinstance(groups, Collection):
            raise ConfigurationError(f"groups={groups!r}: a list of names is needed")
        for group in groups or ():
            check_name("consumer group", group, GROUP_LENGTH_MAX)
        hidden = checked_names(sensitive, f"topic {name}")
        if payload is not None:
            known = self.sent.setdefault(name, payload)
            if known != payload:
                raise UsageError(
                    f"topic {name!r} has the payload {known!r} already; write a union of both"
                )
        if envelope is not None:
            self.envelopes[name] = envelope
        if hidden:
            self._sensitive[name] = self._sensitive.get(name, frozenset()).union(hidden)
        if groups is not None:
            self._with_named_groups.add(name)
        self._named.add(name)
        self._topics[name] = tuple(sorted({*self._topics.get(name, ()), *(groups or ())}))
        self._forget_groups()

    def sensitive_of(self, topic: str) -> SensitiveFields:
        """Return the sensitive fields of the payloads of a topic, with or without its namespace.

        They are named by `topic` and by the settings, or marked by the type of a payload. The topic
        of a group, of retries or of dead letters, may have a message of each topic.
        """
        own = topic.rpartition("%")[2]
        is_of_group = RETRY_PREFIX in topic or DEAD_LETTER_PREFIX in topic
        names = set(checked_names(self._settings.sensitive, "settings"))
        for name in self.topics:
            if is_of_group or name in (topic, own):
                names |= self._sensitive.get(name, frozenset()).union(self._marked_in(name))
        return SensitiveFields(frozenset(names))

    def _marked_in(self, topic: str) -> tuple[str, ...]:
        """Return the fields that the types of a topic's payloads mark as sensitive."""
        # Imported late: only what shows payloads asks.
        from reliable_mq.contract.payloads import payload_type_of  # noqa: PLC0415
        from reliable_mq.contract.sensitive_marks import marked_names  # noqa: PLC0415

        kinds = [self.sent[topic]] if topic in self.sent else []
        kinds += [payload_type_of(each.plan) for each in self.consumers if each.topic == topic]
        known = self._marked.get(topic)
        if known is None or known[0] != self._round:
            marked = (marked_names(kind) for kind in kinds if kind not in (None, Any))
            names = checked_names(tuple(chain.from_iterable(marked))[:NAMES_MAX], f"topic {topic}")
            self._marked[topic] = known = (self._round, names)
        return known[1]

    def groups_of(self, topic: str, tag: str) -> tuple[str, ...]:
        """See `ReliableMQ.groups_of`."""
        self._topics.setdefault(topic, ())
        own: set[str] = set()
        others: set[str] = set()
        for each in self._consumers.values():
            if each.topic == topic:
                tags = tags_of(each.tag)
                (own if not tags or tag in tags else others).add(each.group)
        # A group that is named, too, is asked for no message that its handler does not want.
        return tuple(sorted(own.union(self._topics.get(topic, ())) - others))

    def required_groups(self, topic: str, tag: str) -> tuple[str, ...]:
        """Return the groups that a message of a transaction must reach.

        The known groups depend on the imports of this process. If it knows no group, and nothing
        declares that there need be none, it warns once for each topic, or refuses. It does the same
        once for each tag if it knows groups of the topic but none of them wants the tag.

        Raises:
            UsageError: no group is known, and `send_without_group` is "raise".
        """
        begun = self._round
        groups = self.groups_of(topic, tag)
        if not groups and (topic not in self._with_named_groups or self._topics[topic]):
            self._miss_groups(topic, tag)
        if len(self.known_groups) < _KNOWN_MAX:
            self.known_groups[topic, tag] = groups
            if begun != self._round:  # another thread has declared something meanwhile
                self._forget_groups()
        return groups

    def _forget_groups(self) -> None:
        self._round += 1
        self.known_groups.clear()

    def _miss_groups(self, topic: str, tag: str) -> None:
        policy = self._settings.send_without_group
        wanted = {each.group: each.tag for each in self._consumers.values() if each.topic == topic}
        about = (topic, tag if wanted else "")
        if policy == "allow" or (policy == "warn" and about in self._warned_of):
            return
        where = f"topic {topic!r}{f', tag {tag!r}' if tag else ''}"
        stored = "so a message counts as consumed when the broker has stored it"
        if wanted:
            tags = ", ".join(f"{group} wants {tags!r}" for group, tags in sorted(wanted.items()))
            said = (
                f"{where}: no consumer group that this process knows wants a message with "
                f"{'this' if tag else 'no'} tag ({tags}), {stored}. Correct the tag, or "
                "send with required_groups=() if no group is meant"
            )
        else:
            said = (
                f"{where}: this process knows no consumer group, {stored}. Import the "
                f"module of its consumers, or name their groups: mq.topic({topic!r}, groups=[…]); "
                "groups=[] means that no group needs to read it"
            )
        if policy == "raise":
            raise UsageError(said)
        if len(self._warned_of) < _WARNINGS_MAX:
            self._warned_of.add(about)
            application_events.GROUPS_UNKNOWN.log(log, problem=said)

    def unread_topics(self) -> frozenset[str]:
        """Return the topics that no group must read, as declared by `groups=[]`."""
        return frozenset(name for name in self._with_named_groups if not self._topics[name])

    def is_managed(self, topic: str) -> bool:
        """Return whether a topic is declared, sent to by a transaction, or read by a consumer."""
        return topic in self._topics or any(
            each.topic == topic for each in self._consumers.values()
        )

    def consumer(
        self,
        function: Callable[..., Any],
        *,
        group: str,
        lease: float | None,
        idempotent_by: KeySource | None = None,
        retry_waits: Sequence[float] | None = None,
        **options: Any,
    ) -> None:
        """Register a handler; see `ReliableMQ.consumer`."""
        for what, given in (("topic", options["topic"]), ("group", group)):
            if isinstance(given, Collection) and not isinstance(given, str):
                raise ConfigurationError(
                    f"{what}={given!r:.100}: a handler has one topic and one group; write one for "
                    "each, which calls what they share"
                )
        check_name("consumer group", group, GROUP_LENGTH_MAX)
        if group in self._consumers:
            first = _named(self._consumers[group].plan.function)
            raise UsageError(
                f"consumer group {group} has the handler {first} already: give {_named(function)} a"
                " group of its own"
            )
        seconds = self._settings.claim_lease_seconds if lease is None else lease
        plan = plan_of(function)
        if idempotent_by is not None:
            options["read_key"] = key_reader_of(idempotent_by, f"consumer group {group}")
            check_field(idempotent_by, plan.payload_type, f"consumer group {group}")
        options["retry_waits"] = waits_of(retry_waits)
        made = Consumer(plan=plan, group=group, lease=seconds, **options)
        if not seconds < (window := self._settings.duplicate_window_seconds):
            raise UsageError(f"lease={seconds}: it must be below duplicate_window_seconds={window}")
        self._consumers[group] = made
        self._forget_groups()
