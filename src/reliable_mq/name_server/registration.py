"""Decoding of a broker's registration: its topics and their version.

Source: Apache RocketMQ `RegisterBrokerBody`, `TopicConfigSerializeWrapper`.
"""

import re
import zlib
from collections.abc import Iterator

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.errors import ProtocolError
from reliable_mq.limits import (
    REGISTERED_TOPICS_MAX,
    REGISTRATION_SIZE_MAX,
    SLOW_TEXT_SIZE_MAX,
)
from reliable_mq.name_server.steps import Steps, finish
from reliable_mq.wire.java_int import I32, I64
from reliable_mq.wire.peer_texts import read_json, read_json_as

_UNPACKED_AT_ONCE = 64 * 1024
_UNPACKED_FREELY = 1024 * 1024  # bytes that any body may unpack to
_GROWTH_MAX = 100  # times its size, that a body of more than that unpacks to; topics: 10 to 30
_LINES_AT_ONCE = 50
_PART_SIZE = 16 * 1024  # bytes of JSON that one step decodes
_CUTS_TRIED = 8
_between_rows = re.compile(rb"\}\s*,\s*(?=\")").search


class RegisteredTopic(msgspec.Struct, kw_only=True, rename="camel"):
    """The fields of a topic that a route needs."""

    topic_name: str
    read_queue_nums: I32 = 16
    write_queue_nums: I32 = 16
    perm: I32 = 6
    topic_sys_flag: I32 = 0


@decodable
class RegisteredVersion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The version of a broker's topics. Equal versions mean equal topics."""

    counter: I64 = 0
    state_version: I64 = 0
    timestamp: I64 = 0


@decodable
class Registration(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A broker's topics by name."""

    data_version: RegisteredVersion = msgspec.field(default_factory=RegisteredVersion)
    topic_config_table: dict[str, RegisteredTopic] = msgspec.field(default_factory=dict)


@decodable
class _Body(msgspec.Struct, frozen=True, rename="camel"):
    topic_config_serialize_wrapper: Registration


@decodable
class _UnreadRegistration(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    data_version: RegisteredVersion = msgspec.field(default_factory=RegisteredVersion)
    topic_config_table: msgspec.Raw = msgspec.field(default_factory=lambda: msgspec.Raw(b"{}"))


@decodable
class _UnreadBody(msgspec.Struct, frozen=True, rename="camel"):
    topic_config_serialize_wrapper: _UnreadRegistration


_TOPICS = msgspec.json.Decoder(dict[str, RegisteredTopic])
_BODY = msgspec.json.Decoder(_UnreadBody)


def decode_registration(body: bytes, *, compressed: bool) -> Registration:
    """Return the registration in the body of REGISTER_BROKER; see `decode_in_steps`."""
    return finish(decode_in_steps(body, compressed=compressed))


def decode_in_steps(body: bytes, *, compressed: bool) -> Steps[Registration]:
    """Return the registration in the body of REGISTER_BROKER; an empty body has no topics.

    Raises:
        ProtocolError: when the body does not parse, or exceeds a limit of `limits`.
    """
    try:
        if not body:
            return Registration()
        if compressed:
            data = yield from _decompressed(body)
            return (yield from _decode_compressed(data))
        _refuse_many(body.count(b'"topicName"'))
        if len(body) > SLOW_TEXT_SIZE_MAX:  # a longer body must be standard JSON
            return (yield from _decode_long(read_json_as(body, _UnreadBody)))
        if len(body) > _PART_SIZE and (unread := _unread(body)) is not None:
            return (yield from _decode_long(unread))
        return read_json_as(body, _Body).topic_config_serialize_wrapper
    except (ValueError, TypeError, zlib.error, msgspec.MsgspecError) as error:
        raise ProtocolError(f"the body is not a registration: {error}") from error


def _unread(body: bytes) -> _UnreadBody | None:
    """Return a body whose topics are not decoded; None if it is not standard JSON."""
    try:
        return _BODY.decode(body)
    except msgspec.DecodeError:
        return None


def _decode_long(body: _UnreadBody) -> Steps[Registration]:
    """Decode JSON of many topics part by part: 290,000 topics at once took 0.3 s."""
    unread = body.topic_config_serialize_wrapper
    topics: dict[str, RegisteredTopic] = {}
    for part in _parts(bytes(unread.topic_config_table)):
        topics |= part
        yield
    return Registration(data_version=unread.data_version, topic_config_table=topics)


def _parts(table: bytes) -> Iterator[dict[str, RegisteredTopic]]:
    """Yield the rows of a JSON table, some at a time."""
    if not table.startswith(b"{"):
        yield _TOPICS.decode(table)  # raises, and the error names the wrong type
        return
    at, end = 1, len(table) - 1
    while at < end:
        part, at = _part(table, at, end)
        yield part


def _part(table: bytes, at: int, end: int) -> tuple[dict[str, RegisteredTopic], int]:
    """Return the rows from `at` on, about `_PART_SIZE` bytes, and where the next row begins.

    The pattern for the end of a row may also match inside a row or a text. Then the part does not
    parse, and a later end is tried. After `_CUTS_TRIED` failures the part doubles each time.
    """
    size, tries = _PART_SIZE, 0
    while True:
        cut = _between_rows(table, at + size, end)
        until = cut.start() + 1 if cut else end
        try:
            return _TOPICS.decode(b"{%b}" % table[at:until]), cut.end() if cut else end
        except msgspec.DecodeError:
            if cut is None:
                raise
        tries += 1
        size = until - at if tries < _CUTS_TRIED else 2 * (until - at)


def _decompressed(body: bytes) -> Steps[bytearray]:
    """Return the decompressed body.

    Refuse a body that grows beyond REGISTRATION_SIZE_MAX, or by more than topics can.
    """
    size_max = min(REGISTRATION_SIZE_MAX, max(_UNPACKED_FREELY, _GROWTH_MAX * len(body)))
    unpacking = zlib.decompressobj()
    data = bytearray()
    while not unpacking.eof:
        size = len(data)
        data += unpacking.decompress(body, _UNPACKED_AT_ONCE)
        body = unpacking.unconsumed_tail
        if len(data) > size_max:
            raise ValueError(f"the decompressed body has more than {size_max} bytes")
        if len(data) == size and not body and not unpacking.eof:
            raise ValueError("the compressed body is cut short")
        yield
    return data


def _decode_compressed(data: bytearray) -> Steps[Registration]:
    """Decode `i32 length, data version JSON | i32 count | count * (i32 length, "name readQueues
    writeQueues perm filterType [attributes JSON]")`. A route does not need the bytes after that.
    """
    version, at = _sized(data, 0)
    count = int.from_bytes(data[at : at + 4])
    at += 4
    _refuse_many(count)
    topics: dict[str, RegisteredTopic] = {}
    for number in range(count):
        if number % _LINES_AT_ONCE == 0:
            yield
        line, at = _sized(data, at)
        name, read, write, perm = line.decode().split(" ")[:4]
        row = {"topicName": name, "readQueueNums": read, "writeQueueNums": write, "perm": perm}
        topics[name] = msgspec.convert(row, RegisteredTopic, strict=False)
    data_version = msgspec.convert(read_json(bytes(version)), RegisteredVersion)
    return Registration(data_version=data_version, topic_config_table=topics)


def _refuse_many(count: int) -> None:
    if count > REGISTERED_TOPICS_MAX:
        raise ValueError(f"it has {count} topics; at most {REGISTERED_TOPICS_MAX} are allowed")


def _sized(data: bytearray, at: int) -> tuple[bytearray, int]:
    end = at + 4 + int.from_bytes(data[at : at + 4])
    if end > len(data) or end < at + 4:
        raise ValueError(f"a part claims {end - at - 4} bytes at {at} of {len(data)}")
    return data[at + 4 : end], end
