"""CloudEvents 1.0 as an envelope: around a message that is sent, and of a message that came. Pure.

Two modes. *Binary*: the body is the payload, and the attributes are properties `CE_id`, `CE_source`
and so on, with the names of the official Java library for RocketMQ. *Structured*: the body is a
JSON object with attributes and data. Both are understood, from any sender.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import quote

import msgspec

from reliable_mq.errors import UsageError
from reliable_mq.message import CONTENT_TYPE, ReceivedMessage
from reliable_mq.outbox.media_type import media_type_of
from reliable_mq.outbox.schema import PayloadInvalid

BINARY, STRUCTURED = "cloudevents", "cloudevents-structured"
ENVELOPES = (BINARY, STRUCTURED)
JSON_EVENT = "application/cloudevents+json"
_VERSION = "1.0"
_PREFIX = "CE_"
_CONTENT_TYPE = "CE_contenttype"  # the Java library writes `datacontenttype` under this name
_NO_DATA = b"\0"  # its body of an event without data
_NAME = re.compile("[a-z0-9]+")
_REQUIRED = ("id", "source", "specversion", "type")
_KNOWN = frozenset({*_REQUIRED, "datacontenttype", "dataschema", "subject", "time"})
_DATA = frozenset({"data", "data_base64"})
_CHECKED_LENGTH = 200


class Envelope(msgspec.Struct, frozen=True):
    """The envelope of a topic's messages. `source`: who sends them, a URI reference."""

    mode: str
    source: str

    def wrap(
        self, body: bytes, content_type: str, message_id: str, now: float, topic: str, key: str
    ) -> tuple[bytes, str, dict[str, str]]:
        """Return body, content type and added properties of an event.

        Args:
            body: the payload.
            content_type: its format.
            message_id: the id of the event.
            now: its time, in seconds since the epoch.
            topic: the type of an event whose payload has no schema.
            key: the subject; "" for none.
        """
        media = media_type_of(content_type)
        time = datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds")
        event = {
            "specversion": _VERSION,
            "id": message_id,
            "source": self.source,
            "type": media.parameters.get("schema", topic),
            "time": time.replace("+00:00", "Z"),
        }
        if key:
            event["subject"] = key
        if self.mode == BINARY:
            properties = {f"{_PREFIX}{name}": value for name, value in event.items()}
            return body, content_type, properties | {_CONTENT_TYPE: content_type}
        whole: dict[str, Any] = {**event, "datacontenttype": content_type}
        if media.is_json and media.charset.lower() == "utf-8":
            whole["data"] = msgspec.Raw(body)
        else:
            whole["data_base64"] = base64.b64encode(body).decode()
        return msgspec.json.encode(whole), JSON_EVENT, {_CONTENT_TYPE: JSON_EVENT}


def envelope_of(mode: str, source: str) -> Envelope:
    """Return the envelope that an application declares for a topic.

    Args:
        mode: "cloudevents" or "cloudevents-structured".
        source: the name of the application.

    Raises:
        UsageError: there is no such envelope.
    """
    if mode not in ENVELOPES:
        raise UsageError(f"envelope={mode!r:.100}: write {' or '.join(map(repr, ENVELOPES))}")
    return Envelope(mode, quote(source, safe=""))


class CloudEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The attributes of an event, and its data.

    `CloudEvent.of(message)` reads them from a message that a handler received.

    Attributes:
        id: unique together with `source`.
        source: who sent it, a URI reference.
        type: what happened.
        subject: what it is about; "" for nothing.
        time: when it happened; None: not given.
        datacontenttype: the format of `data`; "" if not given: JSON.
        dataschema: a URI of the schema of `data`; "" if not given.
        extensions: all other attributes.
        data: the body of the payload.
    """

    id: str
    source: str
    type: str
    subject: str = ""
    time: datetime | None = None
    datacontenttype: str = ""
    dataschema: str = ""
    extensions: Mapping[str, str | int | bool] = msgspec.field(default_factory=dict)
    data: bytes = b""

    @classmethod
    def of(cls, message: ReceivedMessage) -> Self | None:
        """Return the event of a message; None: the message is no CloudEvent.

        Raises:
            PayloadInvalid: it is meant to be an event, and breaks a rule. The text names it.
        """
        properties = message.properties
        content_type = properties.get(CONTENT_TYPE) or properties.get(_CONTENT_TYPE, "")
        kind = content_type.partition(";")[0].strip().lower()
        if kind == JSON_EVENT:
            return cls._structured(message.body)
        if kind.startswith("application/cloudevents"):
            raise PayloadInvalid(f"a CloudEvent as {kind:.100}: only {JSON_EVENT} is understood")
        if f"{_PREFIX}specversion" not in properties:
            return None
        attributes: dict[str, Any] = {
            name.removeprefix(_PREFIX): value
            for name, value in properties.items()
            if name.startswith(_PREFIX) and name != _CONTENT_TYPE
        }
        attributes["datacontenttype"] = content_type
        body = b"" if message.body == _NO_DATA else bytes(message.body)
        return cls._checked(attributes, body)

    @classmethod
    def _structured(cls, body: bytes) -> Self:
        try:
            event = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
            attributes = {
                name: msgspec.json.decode(value)
                for name, value in event.items()
                if name not in _DATA
            }
            data, encoded = event.get("data"), event.get("data_base64")
            if data is not None and encoded is not None:
                raise PayloadInvalid("a CloudEvent has data or data_base64, not both")
            if encoded is not None:
                text = msgspec.json.decode(encoded, type=str)
                return cls._checked(attributes, base64.b64decode(text, validate=True))
        except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error, RecursionError) as error:
            raise PayloadInvalid(f"a CloudEvent that cannot be read: {error}") from error
        return cls._checked(attributes, _data_of(data, attributes.get("datacontenttype")))

    @classmethod
    def _checked(cls, attributes: Mapping[str, Any], data: bytes) -> Self:
        given = {name: value for name, value in attributes.items() if value is not None}
        for name in _REQUIRED:
            if not given.get(name):
                raise PayloadInvalid(f"a CloudEvent without {name}")
        for name, value in given.items():
            if not _NAME.fullmatch(name):
                raise PayloadInvalid(
                    f"a CloudEvent with the attribute {name[:_CHECKED_LENGTH]!r}: names have "
                    "letters a-z and digits"
                )
            wanted = str if name in _KNOWN else str | int | bool
            if not isinstance(value, wanted):
                raise PayloadInvalid(f"a CloudEvent whose {name} is no text: {value!r:.100}")
        if given["specversion"] != _VERSION:
            raise PayloadInvalid(
                f"a CloudEvent of version {given['specversion']:.20}: {_VERSION} is understood"
            )
        return cls(
            id=given["id"],
            source=given["source"],
            type=given["type"],
            subject=given.get("subject", ""),
            time=_time_of(given.get("time")),
            datacontenttype=given.get("datacontenttype", ""),
            dataschema=given.get("dataschema", ""),
            extensions={name: value for name, value in given.items() if name not in _KNOWN},
            data=data,
        )


def _time_of(text: str | None) -> datetime | None:
    """Return the time of an event; RFC 3339 wants a time zone."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise PayloadInvalid(f"a CloudEvent whose time cannot be read: {text!r:.100}") from error
    if moment.tzinfo is None:
        raise PayloadInvalid(f"a CloudEvent whose time has no time zone: {text!r:.100}")
    return moment


def _data_of(data: msgspec.Raw | None, content_type: object) -> bytes:
    """Return the body in the member `data`: JSON as it is, and the text of another format."""
    if data is None:
        return b""
    is_json = True
    if isinstance(content_type, str) and content_type:
        try:
            is_json = media_type_of(content_type).is_json
        except UsageError as error:
            raise PayloadInvalid(f"a CloudEvent whose datacontenttype is wrong: {error}") from error
    if not is_json:
        text = msgspec.json.decode(data)
        if isinstance(text, str):
            return text.encode()
    return bytes(data)


def contents_of_event(message: ReceivedMessage) -> tuple[bytes, str]:
    """Return the payload's body and content type: those in the event, if the message is one.

    Raises:
        PayloadInvalid: it is meant to be an event, and breaks a rule.
    """
    event = CloudEvent.of(message)
    if event is None:
        return message.body, message.content_type
    return event.data, event.datacontenttype
