"""The common schema of all ledgers: one row (event) is one trace of one message. Pure.

Every ledger is read into rows of `EVENTS`. Spark shuffles them once by `id`, so that `judge` gets
all traces of a message together. Columns that decide no verdict (keys, notes, owners) are not here:
they are read later, for findings only. The meaning of a column depends on `kind`:

| column | STUB | LOG, TOLD | RECORD |
|---|---|---|---|
| `topic` | the message's | the message's | the topic it was sent to |
| `consumer_group` | null | the group | the group whose copy it is, else null |
| `broker` | the one that acknowledged | the one it came from | the one with the log |
| `queue_id`, `queue_offset` | acknowledged | it came from | of the queue that it is in |
| `state` | status; `TOMBSTONE`, `ODD` | 0 received, 1 consumed | `ROLES` |
| `tries` | sends | attempts | reconsume times |
| `seen` | created | created | stored |
| `changed` | last update | consumed, else null | born |
| `until` | deliver time | end of the lease, null without an owner | when a delay is due |
| `crc`, `size` | of the content | null | of the body; bytes of the record |
| `digest_1`, `digest_2` | of the message: its first 16 bytes | null | of the message |
| `log_offset` | `seq` | null | commit log offset |
| `required` | required groups, by comma | null | null |
| `queue_topic` | null | null | the topic of the queue that it is in |
| `reason` | groups that gave it up, by comma, or null | null | why it is a dead letter |
| `marks` | 0 | `IN_DOUBT`, `DUPLICATE`, `TELLS`, `SKIPPED` | 0 |

Times are UTC, sizes are bytes. A null means that the ledger does not have the value.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reliable_mq.reconcile.brokers.log_roles import (
    DAMAGED,
    DEAD,
    DELAYED,
    FIRST,
    RETRY,
    RETRY_DELAYED,
    STRANDED,
    SYSTEM,
)
from reliable_mq.reconcile.judgement import stub_states

# Kinds. TOLD: a notice from a group whose own database is not read.
STUB, LOG, RECORD, TOLD = range(4)
# States of a stub.
UNCONFIRMED, CONFIRMED, VOIDED, TOMBSTONE, ODD = stub_states.ALL
# States of a consume log.
RECEIVED, CONSUMED = range(2)
# States of a record: the index of its role in this tuple. Add new roles at the end, because carried
# events contain the old numbers.
ROLES = (FIRST, DELAYED, RETRY, RETRY_DELAYED, DEAD, SYSTEM, DAMAGED, STRANDED)
# Bits of `marks`. SKIPPED: a person let the group skip it; it is a DUPLICATE, too, as nothing had
# an effect. TELLS: the stub is in another database, so its confirmation takes longer.
# CARRIED: an earlier run has read it (`increments`).
IN_DOUBT, DUPLICATE, TELLS, SKIPPED, CARRIED = 1, 2, 4, 8, 16

_TIME = pa.timestamp("us", tz="UTC")
EVENTS = pa.schema(
    [
        ("id", pa.binary()),
        ("kind", pa.int8()),
        *((name, pa.string()) for name in ("topic", "consumer_group", "broker")),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("state", pa.int8()),
        ("tries", pa.int32()),
        *((name, _TIME) for name in ("seen", "changed", "until")),
        ("crc", pa.int32()),
        *((name, pa.int64()) for name in ("digest_1", "digest_2")),
        ("log_offset", pa.int64()),
        ("size", pa.int64()),
        *((name, pa.string()) for name in ("required", "queue_topic", "reason")),
        ("marks", pa.int8()),
    ]
)

NO_TIME = np.int64(-(2**63))
_MILLISECONDS_MAX = 253_402_300_799_999  # the end of the year 9999
_DIGITS = 32
_PACKED = 16
_TEXT_MARK = 0xFF
_NO_DIGIT = 0xFF
_VALUE_OF_DIGIT = np.full(256, _NO_DIGIT, np.uint8)
_VALUE_OF_DIGIT[np.frombuffer(b"0123456789ABCDEF", np.uint8)] = np.arange(16, dtype=np.uint8)
_VALUE_OF_ANY_DIGIT = _VALUE_OF_DIGIT.copy()
_VALUE_OF_ANY_DIGIT[np.frombuffer(b"abcdef", np.uint8)] = np.arange(10, 16, dtype=np.uint8)
_DIGITS_OF_BYTE = np.frombuffer(
    b"".join(b"%02X" % value for value in range(256)), np.uint8
).reshape(256, 2)


def packed_ids(ids: pa.Array) -> pa.Array:
    """Return message ids as binary keys, for matching and sorting.

    32 upper-case hexadecimal digits become their 16 bytes. Any other text becomes 0xFF and its
    UTF-8 bytes. Digits that begin with FF are treated as text, too, so that keys stay unique. Ids
    that begin with their time stay in the order of time.

    Args:
        ids: strings. Null stays null.
    """
    ids = ids.cast(pa.string())
    sizes = pc.fill_null(pc.binary_length(ids), 0).to_numpy()
    long_enough = np.flatnonzero(sizes == _DIGITS)
    starts = _starts(ids)[long_enough]
    values = _VALUE_OF_DIGIT[_windows(ids, starts, _DIGITS)]
    packed = values[:, 0::2] << 4 | values[:, 1::2]
    is_number = (values.max(axis=1, initial=0) != _NO_DIGIT) & (packed[:, 0] != _TEXT_MARK)
    numbers, texts = long_enough[is_number], ids.cast(pa.binary())
    if len(numbers) < len(ids):
        mark = pa.scalar(bytes([_TEXT_MARK]), pa.binary())
        texts = pc.binary_join_element_wise(mark, texts, b"")
    return _replaced(texts, numbers, packed[is_number])


def unpacked_ids(ids: pa.Array) -> pa.Array:
    """Return the texts of keys that `packed_ids` made. Null stays null."""
    ids = ids.cast(pa.binary())
    sizes = pc.fill_null(pc.binary_length(ids), 0).to_numpy()
    long_enough = np.flatnonzero(sizes == _PACKED)
    values = _windows(ids, _starts(ids)[long_enough], _PACKED)
    is_number: np.ndarray = values[:, 0] != _TEXT_MARK
    digits = _DIGITS_OF_BYTE[values[is_number]].reshape(-1, _DIGITS)
    numbers = long_enough[is_number]
    texts = ids if len(numbers) == len(ids) else _without_first_byte(ids, numbers)
    return _replaced(texts, numbers, digits).cast(pa.string())


def _without_first_byte(values: pa.Array, emptied: np.ndarray) -> pa.Array:
    """Return binary values without their first byte. Values at `emptied` become empty.

    It is used because Arrow's `binary_slice` fails on nulls. Of the offsets below, every second
    range is kept.
    """
    starts = _starts(values)
    ends = starts + pc.fill_null(pc.binary_length(values), 0).to_numpy()
    wanted = np.minimum(starts + 1, ends)
    wanted[emptied] = ends[emptied]
    offsets = np.append(np.column_stack((wanted, ends)).ravel(), ends[-1:]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), values.buffers()[2]]
    stretches = pa.Array.from_buffers(pa.binary(), 2 * len(values), buffers)
    chosen = pa.array(np.arange(len(values)) * 2, mask=values.is_null().to_numpy(False))
    return stretches.take(chosen)


def id_times(ids: pa.Array) -> np.ndarray:
    """Return the times in packed ids, in microseconds since the epoch. Without a time: `NO_TIME`.

    Our message ids begin with their milliseconds (`message.new_message_id`: a UUIDv7 of 32
    hexadecimal digits, upper or lower case).
    """
    found = np.full(len(ids), NO_TIME)
    sizes = pc.fill_null(pc.binary_length(ids), 0).to_numpy()
    starts = _starts(ids)
    numbers, texts = (np.flatnonzero(sizes == size) for size in (_PACKED, _DIGITS + 1))
    found[numbers] = _times_of(_windows(ids, starts[numbers], _PACKED))
    digits = _VALUE_OF_ANY_DIGIT[_windows(ids, starts[texts] + 1, _DIGITS)]
    of_texts = _times_of(digits[:, 0::2] << 4 | digits[:, 1::2])
    is_number = digits.max(axis=1, initial=0) != _NO_DIGIT
    found[texts] = np.where(is_number, of_texts, NO_TIME)
    return found


def _times_of(packed: np.ndarray) -> np.ndarray:
    milliseconds = np.zeros(len(packed), np.int64)
    for place in range(6):
        milliseconds = milliseconds << 8 | packed[:, place]
    is_ours = (packed[:, 6] >> 4 == 7) & (packed[:, 8] >> 6 == 2)
    is_ours &= milliseconds <= _MILLISECONDS_MAX
    return np.where(is_ours, milliseconds * 1_000, NO_TIME)


def _starts(values: pa.Array) -> np.ndarray:
    """Return the start of each value in the data buffer of a string or binary array."""
    offsets = np.frombuffer(values.buffers()[1] or b"", np.int32)
    return offsets[values.offset : values.offset + len(values)].astype(np.int64)


def _windows(values: pa.Array, starts: np.ndarray, size: int) -> np.ndarray:
    """Return, as one row each, `size` bytes of an array's data from each of `starts`."""
    data = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    if len(starts) == 0:
        return np.empty((0, size), np.uint8)
    windows: np.ndarray = np.lib.stride_tricks.sliding_window_view(data, size)[starts]
    return windows


def _replaced(texts: pa.Array, places: np.ndarray, rows: np.ndarray) -> pa.Array:
    """Return binary `texts` in which the values at `places` are replaced by the bytes of `rows`."""
    if len(places) == 0:
        return texts
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    numbers = pa.Array.from_buffers(pa.binary(), len(rows), buffers)
    if len(places) == len(texts):
        return numbers
    order = np.arange(len(texts))
    order[places] = len(texts) + np.arange(len(places))
    return pa.concat_arrays([texts, numbers]).take(pa.array(order))
