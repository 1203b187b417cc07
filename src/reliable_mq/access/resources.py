"""Resources: what a request names, and what a policy is about.

    *              everything
    Topic:orders   one topic                 Topic:ord*   topics whose names begin like this
    Topic:*        all topics                Group:…, Cluster:…   the same for groups and clusters

Source: Apache RocketMQ `Resource`, `ResourceType`, `ResourcePattern`, `NamespaceUtil`.
"""

from enum import StrEnum
from typing import NamedTuple

RETRY_PREFIX = "%RETRY%"
OF_ALL_TOPICS = frozenset(
    {
        *("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer"),
        *("RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC"),
    }
)
"""Topics in which the broker keeps messages of all topics: delayed, timed and half messages."""
_STAR = "*"


class Kind(StrEnum):
    """What a resource is."""

    UNKNOWN = "Unknown"
    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Pattern(StrEnum):
    """How the name of a resource is compared."""

    ANY = "ANY"
    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Resource(NamedTuple):
    """A resource. `name` is empty for the pattern ANY."""

    kind: Kind
    name: str
    pattern: Pattern = Pattern.LITERAL

    @property
    def key(self) -> str:
        """The resource as people write it: "Topic:orders"."""
        if self.kind is Kind.ANY:
            return _STAR
        star = "" if self.pattern is Pattern.LITERAL else _STAR
        return f"{self.kind}:{self.name}{star}"

    def covers(self, other: "Resource") -> bool:
        """Whether a policy on this resource is about the one that a request names."""
        if self.kind is Kind.ANY:
            return True
        if self.kind is not other.kind:
            return False
        if self.pattern is Pattern.LITERAL:
            return self.name == other.name
        return self.pattern is Pattern.ANY or other.name.startswith(self.name)

    @property
    def is_of_all_topics(self) -> bool:
        """Whether this is a topic with messages of all topics."""
        return self.kind is Kind.TOPIC and self.name in OF_ALL_TOPICS

    @property
    def vagueness(self) -> tuple[bool, int, int]:
        """A key that sorts the most precise resource first."""
        order = (Pattern.LITERAL, Pattern.PREFIXED, Pattern.ANY).index(self.pattern)
        return self.kind is Kind.ANY, order, -len(self.name)


def resource_of(key: str) -> Resource | None:
    """Return the resource that a policy names; None: the text names none."""
    key = key.strip()
    if key == _STAR:
        return Resource(Kind.ANY, "", Pattern.ANY)
    word, _, name = key.partition(":")
    kind = kind_of(word)
    if kind is None:
        return None
    if name == _STAR:
        return Resource(kind, "", Pattern.ANY)
    if name.endswith(_STAR):
        return Resource(kind, name.partition(_STAR)[0], Pattern.PREFIXED)
    return Resource(kind, name)


def kind_of(word: str) -> Kind | None:
    """Return the kind with this name in any case; None: there is none."""
    return next((kind for kind in Kind if kind.lower() == word.lower()), None)


def topic_resource(name: str) -> Resource:
    """Return the resource of a topic; a retry topic belongs to its group."""
    if name.startswith(RETRY_PREFIX):
        return group_resource(name)
    return Resource(Kind.TOPIC, name)


def group_resource(name: str) -> Resource:
    """Return the resource of a group, also from the name of a retry topic of it.

    `%RETRY%group+topic` has messages that were popped. No group's name has a "+".
    """
    if not name.startswith(RETRY_PREFIX):
        return Resource(Kind.GROUP, name)
    return Resource(Kind.GROUP, name.removeprefix(RETRY_PREFIX).partition("+")[0])
