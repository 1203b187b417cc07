"""A store directory of a range of messages, by the format alone; see `reconcile_shape`.

All records of a cycle are made once; each cycle is a copy of them with its own numbers put in.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from bench.reconcile_shape import (
    BODY_HEAD,
    CYCLE,
    GROUPS,
    NUMBER_DIGITS,
    RETRIED_SLOT,
    TOPICS,
    TWICE_SLOT,
    Bytes,
    Data,
    Numbers,
    Slot,
    message_ids,
)
from reliable_mq.limits import CONSUME_QUEUE_FILE_SIZE
from reliable_mq.wire import fastjson
from reliable_mq.wire.java_hash import tags_code
from reliable_mq.wire.properties import encode_properties
from reliable_mq.wire.record import BLANK_SIZE, CRC_MASK, Record, encode_blank, pack_host
from reliable_mq.wire.record_encode import encode_record

DELAY_LEVEL, DELAY_MS = 3, 10_000
CYCLES_AT_ONCE = 100
HOST = pack_host("127.0.0.1", 10911)
NOBODY_ID, NOBODY_KEY = "0" * 32, "#" * NUMBER_DIGITS  # what a message's own takes the place of

_CRC_AT, _QUEUE_OFFSET_AT, _LOG_OFFSET_AT, _BORN_AT, _STORED_AT, _BODY_AT = 8, 20, 28, 40, 56, 88
_UNIT = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("tags_code", ">i8")])
_FILE_UNITS = CONSUME_QUEUE_FILE_SIZE // _UNIT.itemsize


class Piece(NamedTuple):
    """One record of the cycle: where its bytes begin, and what of them is a message's own."""

    slot: int
    begin: int
    size: int
    body_size: int
    queue: tuple[str, int]
    rank: int
    tags_code: int | None  # None: the time of delivery, as in a delay queue
    late_ms: int
    id_at: int
    key_at: int


class Cycle:
    """The bytes of one cycle's records, and where in them each message's own are.

    Invariant: `per_queue` counts the records of every queue in `pieces`.
    """

    def __init__(self, data: Data) -> None:
        self.per_queue: dict[tuple[str, int], int] = {}
        self.pieces: list[Piece] = []
        self._parts: list[bytes] = []
        for number, slot in enumerate(data.slots):
            self._add(number, slot, slot.topic, slot.queue_id, {}, late_ms=2)
        slot = data.slots[TWICE_SLOT]
        self._add(TWICE_SLOT, slot, slot.topic, slot.queue_id, {}, late_ms=900)
        slot, retry = data.slots[RETRIED_SLOT], f"%RETRY%{GROUPS[0]}"
        origin = {"RETRY_TOPIC": slot.topic}
        delayed = {**origin, "REAL_TOPIC": retry, "REAL_QID": "0", "DELAY": str(DELAY_LEVEL)}
        self._add(
            RETRIED_SLOT, slot, "SCHEDULE_TOPIC_XXXX", DELAY_LEVEL - 1, delayed, late_ms=60, tries=1
        )
        self._add(RETRIED_SLOT, slot, retry, 0, origin, late_ms=60 + DELAY_MS, tries=1)
        self.bytes: Bytes = np.frombuffer(b"".join(self._parts), np.uint8)

    def _add(
        self,
        number: int,
        slot: Slot,
        topic: str,
        queue_id: int,
        more: dict[str, str],
        *,
        late_ms: int,
        tries: int = 0,
    ) -> None:
        properties = {"CONTENT_TYPE": "application/json", "UNIQ_KEY": NOBODY_ID, "WAIT": "true"}
        properties |= ({"TAGS": slot.tag} if slot.tag else {}) | {"KEYS": NOBODY_KEY} | more
        properties |= {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "local"}
        body = (BODY_HEAD + NOBODY_KEY + slot.body_rest).encode()
        record = encode_record(
            Record(
                topic=topic,
                body=body,
                properties=encode_properties(properties),
                queue_id=queue_id,
                reconsume_times=tries,
                born_host=HOST,
                store_host=HOST,
            )
        )
        queue = (topic, queue_id)
        behind_body = _BODY_AT + len(body)
        self.pieces.append(
            Piece(
                slot=number,
                begin=sum(map(len, self._parts)),
                size=len(record),
                body_size=len(body),
                queue=queue,
                rank=self.per_queue.get(queue, 0),
                tags_code=None if "DELAY" in more else tags_code(slot.tag),
                late_ms=late_ms,
                id_at=record.index(NOBODY_ID.encode(), behind_body),
                key_at=record.index(NOBODY_KEY.encode(), behind_body),
            )
        )
        self.per_queue[queue] = self.per_queue.get(queue, 0) + 1
        self._parts.append(record)


def _big_endian(values: Numbers, size: int = 8) -> Bytes:
    return values.astype(f">i{size}").view(np.uint8).reshape(-1, size)


def _digits(numbers: Numbers, count: int) -> Bytes:
    powers = 10 ** np.arange(count - 1, -1, -1, dtype=np.int64)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


class StoreFiles:
    """Writes the records of a range of cycles to their places in a store directory."""

    def __init__(self, root: Path, data: Data) -> None:
        self._root, self._data, self._cycle = root, data, Cycle(data)
        self._per_segment = (data.segment_size - BLANK_SIZE) // len(self._cycle.bytes)

    def write(self, first_cycle: int) -> None:
        """Write from this cycle on, and how far the consumer groups have come: to the end."""
        end = self._data.messages // CYCLE
        for begin in self._stretches(first_cycle, end):
            cycles = np.arange(begin[0], begin[1], dtype=np.int64)
            log_offsets = (
                cycles // self._per_segment * self._data.segment_size
                + cycles % self._per_segment * len(self._cycle.bytes)
            )
            self._write_log(cycles, log_offsets)
            self._write_queues(cycles, log_offsets)
        table = {
            f"{topic}@{group}": {
                str(queue): per_cycle * end
                for (name, queue), per_cycle in self._cycle.per_queue.items()
                if name == topic
            }
            for group in GROUPS
            for topic in (*(topic for topic, _, _ in TOPICS), f"%RETRY%{group}")
        }
        config = self._root / "config"
        config.mkdir(exist_ok=True)
        offsets = {"dataVersion": {"counter": 1}, "offsetTable": table}
        (config / "consumerOffset.json").write_bytes(fastjson.dumps(offsets))

    def _stretches(self, first: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield ranges of cycles, each in one segment."""
        while first < end:
            segment_end = (first // self._per_segment + 1) * self._per_segment
            last = min(first + CYCLES_AT_ONCE, segment_end, end)
            yield first, last
            first = last

    def _write_log(self, cycles: Numbers, log_offsets: Numbers) -> None:
        rows = np.tile(self._cycle.bytes, (len(cycles), 1))
        numbers = np.arange(cycles[0] * CYCLE, (cycles[-1] + 1) * CYCLE, dtype=np.int64)
        ids, keys = message_ids(self._data, numbers), _digits(numbers, len(NOBODY_KEY))
        times = self._data.times_ms(numbers)
        for piece in self._cycle.pieces:

            def put(at: int, values: Bytes, begin: int = piece.begin) -> None:
                rows[:, begin + at : begin + at + values.shape[1]] = values

            of_slot = slice(piece.slot, None, CYCLE)
            put(_QUEUE_OFFSET_AT, _big_endian(self._queue_offsets(piece, cycles)))
            put(_LOG_OFFSET_AT, _big_endian(log_offsets + piece.begin))
            put(_BORN_AT, _big_endian(times[of_slot] + 1))
            put(_STORED_AT, _big_endian(times[of_slot] + piece.late_ms))
            put(_BODY_AT + len(BODY_HEAD), keys[of_slot])
            put(piece.id_at, ids[of_slot])
            put(piece.key_at, keys[of_slot])
            body_at = piece.begin + _BODY_AT
            bodies = np.ascontiguousarray(rows[:, body_at : body_at + piece.body_size])
            sums = [crc32(body) & CRC_MASK for body in bodies]
            put(_CRC_AT, _big_endian(np.array(sums), 4))
        base = int(log_offsets[0]) // self._data.segment_size * self._data.segment_size
        path = _made(self._root / "commitlog" / f"{base:020d}", self._data.segment_size)
        with path.open("r+b") as segment:
            segment.seek(int(log_offsets[0]) - base)
            segment.write(rows.data)
            if (cycles[-1] + 1) % self._per_segment == 0:
                segment.write(encode_blank(self._data.segment_size - segment.tell()))

    def _queue_offsets(self, piece: Piece, cycles: Numbers) -> Numbers:
        return cycles * self._cycle.per_queue[piece.queue] + piece.rank

    def _write_queues(self, cycles: Numbers, log_offsets: Numbers) -> None:
        for queue, per_cycle in self._cycle.per_queue.items():
            units = np.empty((len(cycles), per_cycle), _UNIT)
            for piece in self._cycle.pieces:
                if piece.queue == queue:
                    units["log_offset"][:, piece.rank] = log_offsets + piece.begin
                    units["size"][:, piece.rank] = piece.size
                    units["tags_code"][:, piece.rank] = self._tags_codes(piece, cycles)
            self._write_units(queue, int(cycles[0]) * per_cycle, units.reshape(-1))

    def _tags_codes(self, piece: Piece, cycles: Numbers) -> Numbers:
        if piece.tags_code is not None:
            return np.full(len(cycles), piece.tags_code, np.int64)
        return self._data.times_ms(cycles * CYCLE + piece.slot) + piece.late_ms + DELAY_MS

    def _write_units(self, queue: tuple[str, int], first: int, units: npt.NDArray[Any]) -> None:
        folder = self._root / "consumequeue" / queue[0] / str(queue[1])
        while len(units):
            begin = first // _FILE_UNITS * _FILE_UNITS
            path = _made(folder / f"{begin * _UNIT.itemsize:020d}", CONSUME_QUEUE_FILE_SIZE)
            here = units[: begin + _FILE_UNITS - first]
            with path.open("r+b") as file:
                file.seek((first - begin) * _UNIT.itemsize)
                file.write(here.tobytes())
            first, units = first + len(here), units[len(here) :]


def _made(path: Path, size: int) -> Path:
    """Return a file that is as long as a broker makes it, with holes where nothing is written."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
    return path
