"""Microseconds of processor time that station 3 takes for each of its verbs.

One send of 1 KiB as Apache's Java client writes it, its reply, and its record. The best of many
rounds counts, so that what else runs on the machine does not.

    python -m bench.wire_codec
"""

import time
import timeit
from collections.abc import Callable

from reliable_mq.wire.command import Command, decode_command, encode_command, reply
from reliable_mq.wire.frame import FrameReader
from reliable_mq.wire.headers import SendMessageHeaderV2
from reliable_mq.wire.properties import decode_properties, encode_properties
from reliable_mq.wire.record import (
    Record,
    decode_record,
    pack_host,
)
from reliable_mq.wire.record_encode import encode_record

CALLS = 2000
ROUNDS = 40

PROPERTIES = {
    "UNIQ_KEY": "7F000001B418251A69D75A3F9B0C0000",
    "WAIT": "true",
    "TAGS": "TagA",
    "KEYS": "k0",
    "MSG_REGION": "DefaultRegion",
    "TRACE_ON": "true",
    "CLUSTER": "DefaultCluster",
}
STORED_PROPERTIES = encode_properties(PROPERTIES)
SEND = Command(
    code=310,
    opaque=12_345,
    language="JAVA",
    version=493,
    ext_fields={
        "a": "bench",
        "b": "bench",
        "c": "TBW102",
        "d": "4",
        "e": "3",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": STORED_PROPERTIES.decode(),
        "j": "0",
        "k": "false",
        "m": "false",
        "n": "broker-a",
    },
    body=b"a" * 1024,
)
REPLY_EXT = {
    "msgId": "7F00000100002A9F0000000000000000",
    "queueId": "3",
    "queueOffset": "12",
    "MSG_REGION": "DefaultRegion",
    "TRACE_ON": "true",
}
RECORD = Record(
    topic="bench",
    body=SEND.body,
    properties=STORED_PROPERTIES,
    born_host=pack_host("127.0.0.1", 46_104),
    store_host=pack_host("127.0.0.1", 10_911),
)


def verbs() -> dict[str, Callable[[], object]]:
    """Return what is measured, by name."""
    reader = FrameReader()
    stream = encode_command(SEND)
    (frame,) = reader.feed(stream)
    stored = encode_record(RECORD)
    return {
        "FrameReader.feed": lambda: reader.feed(stream),
        "decode_command": lambda: decode_command(frame),
        "SendMessageHeaderV2.decode": lambda: SendMessageHeaderV2.decode(SEND.ext_fields),
        "decode_properties": lambda: decode_properties(STORED_PROPERTIES),
        "encode_properties": lambda: encode_properties(PROPERTIES),
        "encode_record": lambda: encode_record(RECORD),
        "encode_command, a reply": lambda: encode_command(reply(SEND, ext=REPLY_EXT)),
        "decode_record": lambda: decode_record(stored),
        "decode_record, body checked": lambda: decode_record(stored, check_body=True),
    }


def microseconds(verb: Callable[[], object]) -> float:
    """Return the processor time of one call in the best round."""
    rounds = timeit.repeat(verb, timer=time.process_time, number=CALLS, repeat=ROUNDS)
    return min(rounds) / CALLS * 1e6


if __name__ == "__main__":
    for name, verb in verbs().items():
        print(f"{name:30s} {microseconds(verb):6.2f} µs")
