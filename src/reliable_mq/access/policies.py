"""Policies: what a user may do with which resources, from where.

A request is allowed if the entry that decides says so. This entry is found in three steps:

1. An entry is about the request if it covers its resource, has one of its actions, and covers its
   address. Custom entries come first; default entries count only if no custom entry is about it.
2. The entry with the most precise resource decides: a name before a prefix, a longer prefix before
   a shorter one, a prefix before all of a kind, all of a kind before everything. Two entries are
   never equally precise: a user has one entry for each resource and type.
3. If no entry is about the request, it is refused.

A topic in which the broker keeps messages of all topics (`OF_ALL_TOPICS`) is allowed only by an
entry with its whole name, or on everything. Else `Topic:rmq_*` would show the timed messages of all
topics, and `Topic:*` those of a topic that is denied. Apache does not make this difference.

Source: Apache RocketMQ `AclAuthorizationHandler`, `PolicyEntry`, `AclInfo`.
"""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

import msgspec

from reliable_mq.access.resources import Kind, Pattern, Resource, resource_of
from reliable_mq.access.users import AccessRefused, of_name
from reliable_mq.host_and_port import unmapped
from reliable_mq.limits import NAME_LENGTH_MAX

ENTRIES_OF_USER_MAX = 1_000
SOURCES_MAX = 100  # addresses of one entry

_IPV6, _MAPPED_SIZE = 6, 96  # bits before an IPv4 address in IPv6's form
_ACTIONS_MAX = 100  # of one entry; a request may repeat them

_Network = IPv4Network | IPv6Network


class Action(StrEnum):
    """What a request does with a resource."""

    UNKNOWN = "Unknown"
    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


_WRITTEN = tuple(action for action in Action if action not in (Action.UNKNOWN, Action.ANY))


class PolicyType(StrEnum):
    """Whether an entry counts before the others, or only without them."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Effect(StrEnum):
    """What an entry says (Apache: decision)."""

    ALLOW = "Allow"
    DENY = "Deny"


class PolicyEntry(msgspec.Struct, frozen=True):
    """One line of a user's policies. Without `sources` it covers every address."""

    resource: Resource
    actions: tuple[Action, ...]
    effect: Effect
    sources: tuple[str, ...] | None = None

    def is_about(self, resource: Resource, actions: Collection[Action], ip: str) -> bool:
        """Whether the entry is about a request with these actions, from this address."""
        is_action = Action.ALL in self.actions or any(each in self.actions for each in actions)
        if not (is_action and self.resource.covers(resource) and self._covers(ip)):
            return False
        return not (resource.is_of_all_topics and self._allows_some_topics)

    @property
    def _allows_some_topics(self) -> bool:
        """Whether it allows topics by a part of their names, or all topics by their kind."""
        own = self.resource
        is_vague = own.kind is Kind.TOPIC and own.pattern is not Pattern.LITERAL
        return is_vague and self.effect is Effect.ALLOW

    def _covers(self, ip: str) -> bool:
        if not self.sources:
            return True
        try:
            address = ip_address(ip.partition("%")[0])
        except ValueError:
            return False
        return any(address in network for network in map(_network_of, self.sources) if network)

    def row(self) -> dict[str, object]:
        """Return the entry as in the file and in answers."""
        row: dict[str, object] = {
            "actions": list(self.actions),
            "decision": self.effect,
            "resource": self.resource.key,
        }
        if self.sources is not None:
            row["sourceIps"] = list(self.sources)
        return row


class Entries:
    """The entries of one policy type, ready to decide: names by hash, patterns in their order."""

    __slots__ = ("_patterns", "by_resource")

    def __init__(self, entries: Iterable[PolicyEntry]) -> None:
        self.by_resource = {each.resource: each for each in entries}  # in the order of making
        self._patterns = sorted(
            (each for key, each in self.by_resource.items() if key.pattern is not Pattern.LITERAL),
            key=lambda each: each.resource.vagueness,
        )

    def deciding(
        self, resource: Resource, actions: Collection[Action], ip: str
    ) -> PolicyEntry | None:
        """Return the most precise entry that is about a request; None: there is none."""
        entry = self.by_resource.get(resource)
        if entry is not None and entry.is_about(resource, actions, ip):
            return entry
        about = (each for each in self._patterns if each.is_about(resource, actions, ip))
        return next(about, None)


Acl = Mapping[PolicyType, Entries]
"""The policies of one user."""


def deciding_entry(
    acl: Acl, resource: Resource, actions: Collection[Action], ip: str
) -> PolicyEntry | None:
    """Return the entry that decides about a request; None: no entry is about it.

    Args:
        acl: the policies of the user.
        resource: what the request names.
        actions: what it does; one of them is enough.
        ip: the address of its sender.
    """
    for kind in PolicyType:
        entries = acl.get(kind)
        found = entries.deciding(resource, actions, ip) if entries is not None else None
        if found is not None:
            return found
    return None


def merged(acl: Acl, new: Acl) -> Acl:
    """Return policies with new entries; an entry on the same resource is replaced in its place.

    Raises:
        AccessRefused: there would be too many entries.
    """
    result = {kind: dict(entries.by_resource) for kind, entries in acl.items()}
    for kind, entries in new.items():
        result.setdefault(kind, {}).update(entries.by_resource)
    if sum(map(len, result.values())) > ENTRIES_OF_USER_MAX:
        raise AccessRefused(f"a user has at most {ENTRIES_OF_USER_MAX} policy entries")
    return {kind: Entries(entries.values()) for kind, entries in result.items()}


def count_of(acl: Acl) -> int:
    """Return the number of a user's policy entries."""
    return sum(len(entries.by_resource) for entries in acl.values())


def without(acl: Acl, kind: PolicyType, resource: Resource) -> Acl:
    """Return policies without the entry on a resource."""
    result = {each: dict(entries.by_resource) for each, entries in acl.items()}
    result.get(kind, {}).pop(resource, None)
    return {each: Entries(entries.values()) for each, entries in result.items() if entries}


def rows_of(acl: Acl, part: str = "") -> list[dict[str, object]]:
    """Return policies as in the file and in answers.

    Args:
        acl: the policies.
        part: only entries whose resource has this text, such as "Topic:o". Default "": all.
    """
    shown = {
        kind: [each.row() for key, each in entries.by_resource.items() if part in key.key]
        for kind, entries in acl.items()
    }
    return [{"entries": rows, "policyType": kind} for kind, rows in shown.items() if rows]


def acl_of(rows: Any) -> Acl:
    """Return the policies in the body of a request or in the file.

    Raises:
        AccessRefused: they are incomplete; in Apache's words.
    """
    if not isinstance(rows, list) or not rows:
        raise AccessRefused("The policies is empty.")
    result: Acl = {}
    for policy in rows:
        row = policy if isinstance(policy, dict) else {}
        kind = _kind_of(row.get("policyType"))
        entries = row.get("entries")
        if isinstance(entries, list) and entries:
            result = merged(result, {kind: Entries(map(_entry_of, entries))})
    if not result:
        raise AccessRefused("The policies is empty.")
    return result


def _kind_of(name: object) -> PolicyType:
    """Return the type with this name. A misspelt Default would count before all others."""
    if not name:
        return PolicyType.CUSTOM
    kind: PolicyType | None = of_name(PolicyType, name)
    if kind is None:
        raise AccessRefused("The policyType must be Custom or Default.")
    return kind


def _entry_of(entry: Any) -> PolicyEntry:
    row = entry if isinstance(entry, dict) else {}
    named = row.get("resource")
    resource = resource_of(named) if isinstance(named, str) else None
    if resource is None:
        raise AccessRefused("The resource is null.")
    if len(resource.name) > NAME_LENGTH_MAX or not resource.name.isprintable():
        raise AccessRefused(f"a resource has at most {NAME_LENGTH_MAX} printable characters")
    effect = of_name(Effect, row.get("decision"))
    actions = _actions_of(row.get("actions"))
    sources = _sources_of(row.get("sourceIps"))
    if effect is None:
        raise AccessRefused("The decision is null or illegal.")
    return PolicyEntry(resource, actions, effect, sources)


def _actions_of(names: Any) -> tuple[Action, ...]:
    listed = names if isinstance(names, list) else []
    actions = tuple(each for name in listed if (each := of_name(Action, name)) is not None)
    if len(actions) > _ACTIONS_MAX:
        raise AccessRefused(f"an entry has at most {_ACTIONS_MAX} actions")
    if not actions:
        raise AccessRefused("The actions is empty.")
    if len(actions) < len(listed):  # Apache leaves it out: a misspelt denial would deny nothing
        raise AccessRefused(f"The actions must be of {', '.join(_WRITTEN)}.")
    if Action.ANY in actions:
        raise AccessRefused("The actions can not be Any.")
    return actions


def _sources_of(listed: Any) -> tuple[str, ...] | None:
    if listed is None or listed == []:
        return None
    if not isinstance(listed, list) or len(listed) > SOURCES_MAX:
        raise AccessRefused(f"sourceIps is a list of at most {SOURCES_MAX} addresses")
    for source in listed:
        if not isinstance(source, str) or not source.strip():
            raise AccessRefused("The source ip is empty.")
        if _network_of(source) is None:
            raise AccessRefused("The source ip is invalid.")
    return tuple(listed)


def _network_of(source: str) -> _Network | None:
    """Return the range of addresses that a text names, such as 10.0.0.0/8; None: it names none."""
    _, slash, size = source.partition("/")
    if slash and not (size.isascii() and size.isdecimal()):
        return None  # Python would also read a mask, 10.0.0.0/255.0.0.0
    try:
        found = ip_network(source, strict=False)
    except ValueError:
        return None
    if found.version == _IPV6 and found.prefixlen >= _MAPPED_SIZE:  # the peers' have IPv4's form
        address = unmapped(found.network_address)
        if address.version != _IPV6:
            return ip_network((address, found.prefixlen - _MAPPED_SIZE))
    return found
