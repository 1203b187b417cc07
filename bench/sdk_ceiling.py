"""The most that an SDK can do: an endpoint in C that answers at once and stores nothing.

Its answers are made once, by the code of our endpoint. So the SDK has as much to read and to check
as at a broker. Clients find all topics at it, with one topic's queues.
"""

import time
from pathlib import Path
from typing import Any, Self

from bench.send_ceiling import CeilingProgram
from reliable_mq.gateway.codes import ClientKind, Code
from reliable_mq.gateway.field_bytes import field_tags, sized
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.receiving import PoppedMessage, encode_message, said_in
from reliable_mq.gateway.sessions import Session, completed
from reliable_mq.runtime.self_signed import write_self_signed
from reliable_mq.testing.local_servers import free_port
from reliable_mq.wire.pop_handle import NORMAL, PopHandle
from reliable_mq.wire.record import Record, pack_host

SOURCE = Path(__file__).with_suffix(".c")
RECEIVED, QUEUES, BODY = 32, 8, b"x" * 1024
_OK = {"code": Code.OK, "message": "OK"}
_READ_WRITE, _NORMAL_MESSAGES = 4, 1


def _answer(kind: str, **fields: Any) -> bytes:
    data: bytes = TYPES[kind](**fields).SerializeToString()
    return _framed(data)


def _framed(data: bytes) -> bytes:
    """Return a message as gRPC sends it."""
    return b"\0" + len(data).to_bytes(4) + data


def _message(number: int, topic: str, now_ms: int) -> bytes:
    """Return one of the messages that are received again and again."""
    host = pack_host("127.0.0.1", 10911)
    handle = PopHandle(0, now_ms, 60_000, number % 8, NORMAL, "ceiling", 0, number)
    unique_key = f"01{number:030X}"
    record = Record(
        *(topic, BODY, f"UNIQ_KEY\x01{unique_key}\x02".encode()),
        queue_offset=number,
        commit_log_offset=number * 1400,
        born_time_ms=now_ms,
        born_host=host,
        store_time_ms=now_ms,
        store_host=host,
    )
    popped = PoppedMessage(record, *said_in(record.properties), handle.text(), 0)
    message = field_tags("ReceiveMessageResponse")["message"]
    return _framed(sized(message, encode_message(popped, topic)))


def _settings(kind: ClientKind, **fields: Any) -> bytes:
    given = TYPES["Settings"](client_type=kind, request_timeout={"seconds": 10}, **fields)
    session = Session("", given)
    session.kind = kind
    return _answer("TelemetryCommand", status=_OK, settings=completed(session))


def answers(topic: str, port: int) -> list[bytes]:
    """Return all answers, in the order of `enum call` in the program."""
    now_ms = time.time_ns() // 1_000_000
    address = {"scheme": 1, "addresses": [{"host": "127.0.0.1", "port": port}]}
    queue = {"topic": {"name": topic}, "permission": _READ_WRITE}
    queue |= {"broker": {"name": "ceiling", "endpoints": address}}
    queue |= {"accept_message_types": [_NORMAL_MESSAGES]}
    queues = [{**queue, "id": number} for number in range(QUEUES)]
    sent = {"status": _OK, "message_id": f"01{0:030X}", "transaction_id": "", "offset": 1_000_000}
    one = {"status": _OK, "message_id": f"01{0:030X}", "receipt_handle": "0" * 60}
    time_of_it = {"seconds": now_ms // 1000, "nanos": now_ms % 1000 * 1_000_000}
    none = {"code": Code.MESSAGE_NOT_FOUND, "message": "no new message"}
    return [
        _answer("QueryRouteResponse", status=_OK, message_queues=queues),
        _answer("HeartbeatResponse", status=_OK),
        _answer("NotifyClientTerminationResponse", status=_OK),
        _answer("SendMessageResponse", status=_OK, entries=[sent]),
        _answer("AckMessageResponse", status=_OK, entries=[one]),
        _answer("ReceiveMessageResponse", status=none),
        b"".join(
            (
                _answer("ReceiveMessageResponse", status=_OK),
                *(_message(number, f"{topic}-backlog", now_ms) for number in range(RECEIVED)),
                _answer("ReceiveMessageResponse", delivery_timestamp=time_of_it),
            )
        ),
        _settings(ClientKind.PRODUCER, publishing={"topics": [{"name": topic}]}),
        _settings(ClientKind.SIMPLE_CONSUMER, subscription={"group": {"name": "sdk-readers"}}),
    ]


class SdkCeiling(CeilingProgram):
    """The running endpoint. A context manager.

    Args:
        directory: where its program, its answers and its log go.
        topic: to which clients send; messages that they receive are of its backlog.
    """

    def __init__(self, directory: Path, topic: str) -> None:
        super().__init__(directory, SOURCE)
        self._topic = topic
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        file = self._directory / "answers"
        pair = [self._directory / "certificate.pem", self._directory / "key.pem"]
        write_self_signed(*pair)
        found = answers(self._topic, self._port)
        file.write_bytes(b"".join(len(each).to_bytes(4) + each for each in found))
        arguments = [str(self._port), *map(str, (file, *pair))]
        self._start(arguments, "-lssl", "-lcrypto")
        return self
