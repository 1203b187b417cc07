"""What a request names: the resources in its header and body, and the actions that it needs.

Receives a command and the rule of its code. Returns resources with actions. A body is read as its
handler reads it, so both see the same names.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from reliable_mq.access.policies import Action
from reliable_mq.access.resources import (
    RETRY_PREFIX,
    Kind,
    Resource,
    group_resource,
    topic_resource,
)
from reliable_mq.access.rules import CodeRule, Need
from reliable_mq.access.users import AccessRefused
from reliable_mq.limits import SUBSCRIPTIONS_MAX
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.peer_texts import read_json
from reliable_mq.wire.pop_handle import popped_topic

NAMES_MAX = 2 * SUBSCRIPTIONS_MAX
UNREADABLE = "parse authorization context error."

# These requests may name a retry topic of their group. The rights on the real topic count.
_OF_POPPED = frozenset({RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME})


class Wanted(NamedTuple):
    """A resource that a request names, and actions on it; one of them is enough."""

    resource: Resource
    actions: tuple[Action, ...]


def wanted_by(command: Command, rule: CodeRule, cluster: str) -> list[Wanted]:
    """Return everything that a request needs.

    Raises:
        AccessRefused: the body cannot be read, or does not have the names that it must have.
    """
    found: dict[Wanted, None] = {}
    body: Any = None
    for need in rule.needs:
        if need.in_body and body is None:
            body = _body_of(command)
        names = _in_body(body, need) if need.in_body else _in_header(command, need)
        if need.kind is Kind.TOPIC and command.code in _OF_POPPED:
            group = command.ext_fields.get("consumerGroup", "")
            names = [popped_topic(name, group) for name in names]
        for name in names:
            make = topic_resource if need.kind is Kind.TOPIC else group_resource
            is_retry = need.retry_actions and name.startswith(RETRY_PREFIX)
            actions = need.retry_actions if is_retry else need.actions
            found[Wanted(make(name), actions)] = None
            if len(found) > NAMES_MAX:
                raise AccessRefused(f"a request names at most {NAMES_MAX} topics and groups")
    if not found and not rule.may_name_none:
        return [Wanted(Resource(Kind.CLUSTER, cluster), rule.actions)]
    return list(found)


def _in_header(command: Command, need: Need) -> list[str]:
    text = command.ext_fields.get(need.place, "")
    if need.separator:
        return [name for each in text.split(need.separator) if (name := each.strip())]
    return [] if need.is_optional and not text.strip() else [text]


def _body_of(command: Command) -> Any:
    try:
        return read_json(command.body) if command.body else {}
    except ValueError as error:
        raise AccessRefused(UNREADABLE) from error


def _in_body(body: Any, need: Need) -> Iterator[str]:
    for name in _walk(body, need.place.split(".")):
        if isinstance(name, str):
            yield name
        elif name is not None or not need.is_optional:
            raise AccessRefused(UNREADABLE)


def _walk(value: Any, path: list[str]) -> Iterator[Any]:
    """Yield the values at a path; one of them is None for each object without the last name."""
    if not path:
        yield value
        return
    if value is None:
        return
    if not isinstance(value, dict):
        raise AccessRefused(UNREADABLE)
    word, rest = path[0], path[1:]
    inner = value.get(word.removesuffix("[]"))
    if not word.endswith("[]"):
        yield from _walk(inner, rest)
    elif isinstance(inner, list):
        for each in inner:
            yield from _walk(each, rest)
    elif inner is not None:
        raise AccessRefused(UNREADABLE)
