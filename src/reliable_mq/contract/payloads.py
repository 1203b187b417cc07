"""The payloads of an application: of its topics, its consumers, its periodic messages. Values only.

A payload class with a `schema` is one contract for all who write or read it, under the schema's
name. Other payloads belong to the topic that they are sent to, or to the group that reads them.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from reliable_mq.consume.consumer import CallPlan, Consumer
from reliable_mq.contract.json_schema import Json, schema_of_type
from reliable_mq.outbox.schema import schema_of

Rule = Literal["backward", "forward", "full"]


class DeclaredPayload(NamedTuple):
    """A payload and the topics that carry it.

    `name`: its name among the contracts. `rule`: which direction must stay compatible. `version`
    and `oldest`: of its `schema`; 0: it has none.
    """

    name: str
    kind: Any
    rule: Rule
    version: int = 0
    oldest: int = 0

    def schemas(self) -> "PayloadSchemas":
        """Return the JSON Schemas of the payload; raises `UsageError` if it has none."""
        reads = schema_of_type(self.kind, "reads", self.name)
        writes = schema_of_type(self.kind, "writes", self.name)
        return PayloadSchemas(self.name, self.rule, self.version, self.oldest, reads, writes)


class PayloadSchemas(NamedTuple):
    """The JSON Schemas of a payload. None: its bodies are bytes."""

    name: str
    rule: Rule
    version: int
    oldest: int
    reads: Json | None
    writes: Json | None


def payload_type_of(plan: CallPlan) -> Any:
    """Return the payload type of a handler; None: it does not take the payload."""
    if plan.payload is None:
        return None
    return get_type_hints(plan.function).get(plan.payload, Any)


def members_of(kind: Any) -> tuple[Any, ...]:
    """Return the classes of a union whose members all have a `schema`; otherwise the type alone."""
    members = get_args(kind) if get_origin(kind) in {Union, UnionType} else ()
    if members and all(schema_of(each) is not None for each in members):
        return members
    return (kind,)


def declared_payloads(
    sent: Mapping[str, Any], consumers: Iterable[Consumer]
) -> list[DeclaredPayload]:
    """Return the payloads of an application, each name once, in the order of their names.

    A second class with the same `schema` is a payload of its own: of the topic that it is sent to,
    or of the group that reads it.

    Args:
        sent: the type that is sent to each topic.
        consumers: the consumers.
    """
    found: dict[str, DeclaredPayload] = {}
    for own in _all(sent, consumers):
        each = _shared(own.kind) or own
        if found.setdefault(each.name, each).kind != each.kind:
            part = each._replace(name=f"{each.name}.{own.name}", rule=own.rule)
            found[part.name] = part
    return [found[name] for name in sorted(found)]


def _all(sent: Mapping[str, Any], consumers: Iterable[Consumer]) -> Iterator[DeclaredPayload]:
    """Yield each payload under the name that it has without a schema."""
    for topic, kind in sent.items():
        for member in members_of(kind):
            yield DeclaredPayload(f"{topic}.sent", member, "forward")
    for consumer in consumers:
        kind = payload_type_of(consumer.plan)
        if kind is None:
            continue
        for member in members_of(kind):
            yield DeclaredPayload(f"{consumer.topic}.{consumer.group}", member, "backward")


def _shared(kind: Any) -> DeclaredPayload | None:
    known = schema_of(kind)
    if known is None:
        return None
    return DeclaredPayload(known.name, kind, "full", known.version, known.oldest)
