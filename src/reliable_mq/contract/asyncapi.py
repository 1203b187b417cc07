"""The AsyncAPI 3 document of an application. Pure.

Channels are topics. Operations are its consumers ("receive") and the sends that it declares
("send"): payloads of topics, and periodic messages. Messages have the schemas of their payloads.
"""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from reliable_mq.consume.consumer import Consumer
from reliable_mq.contract.json_schema import Json, Use, refs_moved, schema_of_type
from reliable_mq.contract.payloads import members_of, payload_type_of
from reliable_mq.outbox.payload import BYTES, JSON, TEXT
from reliable_mq.outbox.schema import schema_of
from reliable_mq.periodic.declaration import PeriodicMessage

VERSION = "3.0.0"
_SCHEMAS = "#/components/schemas/"
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class Described(NamedTuple):
    """What the document describes.

    `topics`: the managed topics. `sent`: the payload type that is sent to each topic. `brokers`:
    name servers as "host:port"; empty: the document names no server. `envelopes`: the envelope of
    each topic that has one.
    """

    name: str
    version: str
    topics: Iterable[str]
    sent: Mapping[str, Any]
    consumers: Iterable[Consumer]
    periodic: Iterable[PeriodicMessage]
    brokers: Iterable[str] = ()
    envelopes: Mapping[str, str] = MappingProxyType({})


def asyncapi_document(about: Described) -> Json:
    """Return the AsyncAPI 3.0.0 document of an application.

    Raises:
        UsageError: a payload type has no JSON Schema.
    """
    return _Document(about).made()


class _Document:
    """One document under construction."""

    def __init__(self, about: Described) -> None:
        self._about = about
        self._messages: dict[str, Json] = {}
        self._schemas: dict[str, Json] = {}
        self._channels: dict[str, Json] = {}
        self._operations: dict[str, Json] = {}

    def made(self) -> Json:
        about = self._about
        for topic in sorted(about.topics):
            self._channel(topic)
        for topic, kind in sorted(about.sent.items()):
            self._operation(
                "send", topic, f"send.{topic}", self._names(topic, "sent", kind, "writes")
            )
        for each in about.periodic:
            self._add_periodic(each)
        for consumer in about.consumers:
            self._add_consumer(consumer)
        document: Json = {
            "asyncapi": VERSION,
            "info": {"title": about.name, "version": about.version},
            "defaultContentType": JSON,
        }
        if servers := self._servers():
            document["servers"] = servers
        document |= {"channels": self._channels, "operations": self._operations}
        document["components"] = {"messages": self._messages, "schemas": self._schemas}
        return document

    def _servers(self) -> Json:
        return {
            f"nameServer{place}": {"host": host, "protocol": "rocketmq"}
            for place, host in enumerate(self._about.brokers, 1)
        }

    def _add_consumer(self, consumer: Consumer) -> None:
        kind = payload_type_of(consumer.plan)
        names = self._names(consumer.topic, consumer.group, kind, "reads")
        operation = self._operation("receive", consumer.topic, f"receive.{consumer.group}", names)
        operation["title"] = f"consumer group {consumer.group}"
        operation["x-consumer-group"] = consumer.group
        if consumer.tag.strip() not in ("", "*"):
            operation["x-tag"] = consumer.tag
        _add_doc(operation, consumer.plan.function)

    def _add_periodic(self, message: PeriodicMessage) -> None:
        sent = self._about.sent.get(message.topic)
        kind = Any if sent is None else sent
        names = self._names(message.topic, f"{message.name}.sent", kind, "writes")
        operation = self._operation("send", message.topic, f"periodic.{message.name}", names)
        operation["title"] = f"periodic message {message.name}"
        operation["x-schedule"] = message.schedule.text
        _add_doc(operation, message.function)

    def _channel(self, topic: str) -> Json:
        key = legal(topic)
        channel: Json = {"address": topic, "messages": {}}
        if topic in self._about.envelopes:
            channel["x-envelope"] = self._about.envelopes[topic]
        return self._channels.setdefault(key, channel)

    def _operation(self, action: str, topic: str, name: str, messages: Iterable[str]) -> Json:
        channel, key = self._channel(topic), legal(topic)
        references = []
        for each in messages:
            channel["messages"][each] = {"$ref": f"#/components/messages/{each}"}
            references.append({"$ref": f"#/channels/{key}/messages/{each}"})
        made: Json = {"action": action, "channel": {"$ref": f"#/channels/{key}"}}
        made["messages"] = references
        self._operations[legal(name)] = made
        return made

    def _names(self, topic: str, part: str, kind: Any, use: Use) -> list[str]:
        """Add the messages of a payload type; return their names."""
        if kind is None:  # a handler that does not take the payload
            return []
        names = []
        for member in members_of(kind):
            known = schema_of(member)
            name = legal(f"{topic}.{part}" if known is None else f"{known.name}.v{known.version}")
            if name not in self._messages:
                self._messages[name] = self._message(name, member, use)
            names.append(name)
        return names

    def _message(self, name: str, kind: Any, use: Use) -> Json:
        known = schema_of(kind)
        content_type = BYTES if kind is bytes else TEXT if kind is str else JSON
        message: Json = {"name": name, "contentType": content_type}
        if known is not None:
            message["contentType"] = known.content_type
        title = getattr(kind, "__name__", None)
        if isinstance(title, str) and kind is not Any:
            message["title"] = title
        schema = schema_of_type(kind, use, f"message {name}")
        if schema is not None:
            message["payload"] = self._hoisted(schema, name)
        return message

    def _hoisted(self, schema: Json, name: str) -> Json:
        """Return a schema whose definitions are among the components, under names of their own."""
        moved, parts = refs_moved(_draft_7(schema), f"{_SCHEMAS}{name}.")
        for part, value in parts.items():
            self._schemas[f"{name}.{legal(part)}"] = value
        return moved


def legal(name: str) -> str:
    """Return a name as a key of the document: "|" becomes ".7c", so that no two names are one."""
    return "".join(each if each in _LEGAL else f".{ord(each):x}" for each in name)


def _add_doc(operation: Json, function: Callable[..., Any]) -> None:
    text = (function.__doc__ or "").strip()
    if text:
        operation["summary"] = text.splitlines()[0]


def _draft_7(value: Any) -> Any:
    """Return a JSON Schema of 2020-12 in the words of draft 7, which AsyncAPI extends."""
    if isinstance(value, list):
        return [_draft_7(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {name: _draft_7(each) for name, each in value.items()}
    first = found.pop("prefixItems", None)
    if first is not None:
        rest = found.pop("items", None)
        found["items"] = first
        if rest is not None:
            found["additionalItems"] = rest
    choice = found.get("discriminator")
    if isinstance(choice, dict) and "propertyName" in choice:
        found["discriminator"] = choice["propertyName"]
    return found
