"""The fast reader of commit log records: many at once, bytes in, Arrow columns out.

Receives bytes and the names of columns. Returns a batch of these columns. It returns the same
values as `log_scan`, and tests compare both. `log_scan` reads the rare records: copies in system
topics, IPv6 hosts, long topics. Knows no files and no Spark.

It finds the starts of records by their sizes, and reads and checks all heads as columns. Parts of
variable length are slices of the buffer. An Arrow array over the buffer has the offsets begin, end,
begin, end, …, so its even elements are the wanted slices. Only these are copied (`log_slices`).
Columns that are not requested are not read.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal.isal_zlib import crc32
from numpy.typing import NDArray

from reliable_mq.reconcile.brokers.log_roles import (
    FIRST,
    STRANDED,
    USUAL,
    RecordContext,
    is_special,
)
from reliable_mq.reconcile.brokers.log_scan import (
    INVISIBLE,
    LogRow,
    ScanEnd,
    content_of,
    id_without_key,
    read_row,
    record_starts,
    stored_digest,
)
from reliable_mq.reconcile.brokers.log_schema import (
    BODY,
    LOG_SCHEMA,
    PROPERTIES,
    TIME_MAX_MS,
    TIME_MIN_MS,
    columns_of,
    log_batch,
)
from reliable_mq.reconcile.brokers.log_slices import (
    Ints,
    is_ascii,
    is_plain,
    property_slices,
    slices,
)
from reliable_mq.wire.message_id import ledger_id
from reliable_mq.wire.properties import TAGS, UNIQ_KEY
from reliable_mq.wire.record import (
    BORN_HOST_V6,
    COMPRESSED,
    CRC_MASK,
    MAGIC_V2,
    STORE_HOST_V6,
    TRANSACTION_MASK,
    decode_record,
)
from reliable_mq.wire.record_head import body_end_in

# wire/record.py draws it; both hosts IPv4.
_HEAD_SIZE = 88
_HEAD = np.dtype(
    {
        "names": [
            *("size", "magic", "body_crc", "queue_id", "queue_offset", "commit_log_offset"),
            *("sys_flag", "born_time", "store_time", "reconsume_times", "body_size"),
        ],
        "formats": [">i4", ">u4", ">i4", ">i4", ">i8", ">i8", ">i4", ">i8", ">i8", ">i4", ">i4"],
        "offsets": [0, 4, 8, 12, 20, 28, 36, 40, 56, 72, 84],
        "itemsize": _HEAD_SIZE,
    }
)
_STORE_HOST_AT, _STORE_HOST_SIZE = 64, 8
_V6 = BORN_HOST_V6 | STORE_HOST_V6
_OF_CONTENTS = frozenset({"content_crc", "message_digest"})


def columns(
    buffer: bytes,
    log_offset: int | None,
    schema: pa.Schema,
    *,
    check_body: bool = True,
    context: RecordContext = USUAL,
) -> tuple[pa.RecordBatch, int, ScanEnd]:
    """Read consecutive records from the beginning of `buffer`.

    Args:
        buffer: bytes of one segment or of a pull. The first byte is the start of a record.
        log_offset: the log offset of the first byte. Every record must contain the right offset.
            None: the records are from any place in the log, and their offsets are not checked.
        schema: the wanted columns, from `RECORD_SCHEMA`.
        check_body: whether `content_crc` is computed if it is wanted. Otherwise it is null.
        context: the settings and names of the broker of the log.

    Returns:
        The batch, the number of bytes of its records, and why the scan ended.
    """
    starts, used, end = record_starts(buffer)
    if not starts:
        return pa.RecordBatch.from_pylist([], schema=schema), used, end
    check_body = check_body and not _OF_CONTENTS.isdisjoint(schema.names)
    records = _Records(buffer, np.array(starts, np.int64), log_offset, check_body, context)
    if records.count < len(starts):
        used, end = starts[records.count], ScanEnd.INVALID
    return records.batch(schema), used, end


class _Records:
    """The `count` valid records at the beginning of a buffer, up to the first invalid one.

    `_usual` are the records that are read as columns. `_rare` are the others, each with its row
    from the plain reader.
    """

    def __init__(
        self,
        buffer: bytes,
        starts: Ints,
        log_offset: int | None,
        check_body: bool,
        context: RecordContext,
    ) -> None:
        self._buffer, self._bytes = buffer, np.frombuffer(buffer, np.uint8)
        windows = np.lib.stride_tricks.sliding_window_view(self._bytes, _HEAD_SIZE)
        heads = windows[starts].view(_HEAD)[:, 0]
        sizes = heads["size"].astype(np.int64)
        ends = starts + sizes
        body_ends = starts + _HEAD_SIZE + heads["body_size"].astype(np.int64)
        sound, property_begins = self._parts(starts, ends, body_ends, heads["body_size"])
        if log_offset is not None:
            sound &= heads["commit_log_offset"] == starts + log_offset
        odd = (heads["magic"] == MAGIC_V2) | (heads["sys_flag"] & _V6 != 0)
        count = int(np.argmin(sound | odd)) if not (sound | odd).all() else len(starts)
        self._check_body = check_body
        self._context = context
        rows: dict[int, LogRow] = {}
        for index in np.flatnonzero(odd[:count]).tolist():
            row = self._row(int(starts[index]), log_offset)
            if row is None:
                count = index
                break
            rows[index] = row
        self.count = count
        self._starts, self._ends, self._heads = starts[:count], ends[:count], heads[:count]
        self._body_ends, self._property_begins = body_ends[:count], property_begins[:count]
        self._rare, self._usual = self._sorted_out(odd[:count])
        self._rows = [
            rows.get(index) or self._row(int(starts[index]), log_offset)
            for index in self._rare.tolist()
        ]

    def _parts(
        self, starts: Ints, ends: Ints, body_ends: Ints, body_sizes: Any
    ) -> tuple[NDArray[np.bool_], Ints]:
        """Return which records have consistent lengths, and where their properties begin."""
        data = self._bytes
        sound = (body_sizes >= 0) & (body_ends + 3 <= ends)
        at = np.where(sound, body_ends, starts)  # of the others: any readable index
        begins = at + 1 + data[at].astype(np.int64) + 2
        sound &= begins <= ends
        begins = np.where(sound, begins, starts + 2)
        lengths = data[begins - 2].astype(np.int64) * 256 + data[begins - 1]
        return sound & (lengths == ends - begins), begins

    def _row(self, at: int, log_offset: int | None) -> LogRow | None:
        place = None if log_offset is None else log_offset + at
        return read_row(self._buffer, at, place, check_body=self._check_body, context=self._context)

    def _sorted_out(self, odd: NDArray[np.bool_]) -> tuple[Ints, Ints]:
        """Return the indexes of rare and of usual records, and store the topics of usual ones."""
        plain = np.flatnonzero(~odd)
        transaction = self._heads["sys_flag"][plain] & TRANSACTION_MASK
        topics = self._slices(self._body_ends[plain] + 1, self._property_begins[plain] - 2)
        encoded = topics.dictionary_encode()
        names = [name.decode("utf-8", "replace") for name in encoded.dictionary.to_pylist()]
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        special = np.array([is_special(name) for name in names], np.bool_)[codes]
        rare = np.isin(transaction, INVISIBLE) | special if len(plain) else special
        self._topics = pa.DictionaryArray.from_arrays(
            pa.array(codes[~rare], pa.int32()), pa.array(names, pa.string())
        )
        return np.sort(np.concatenate((np.flatnonzero(odd), plain[rare]))), plain[~rare]

    def _slices(self, begins: Ints, ends: Ints) -> pa.LargeBinaryArray:
        return slices(self._buffer, begins, ends)

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """Return the wanted columns of all records, in the order of the log."""
        order = None
        if len(self._rare):
            places = np.concatenate((self._usual, self._rare))
            order = pa.array(np.argsort(places, kind="stable"))
        in_rows = [name for name in schema.names if name in LogRow._fields]
        rare = log_batch(
            [row for row in self._rows if row is not None], columns_of(in_rows, LOG_SCHEMA)
        )
        made: list[Any] = []
        for field in schema:
            if field.name == BODY:
                made.append(self._bodies().cast(field.type))
                continue
            if field.name == PROPERTIES:
                made.append(self._stored_properties().cast(field.type))
                continue
            values = _MAKERS[field.name](self, field)
            if order is not None:
                values = pa.concat_arrays([values, rare.column(field.name)]).take(order)
            made.append(values)
        return pa.record_batch(made, schema=schema)

    def _bodies(self) -> pa.LargeBinaryArray:
        begins = self._body_ends - self._heads["body_size"]
        ends = self._body_ends.copy()
        for index in self._odd().tolist():
            at = int(self._starts[index])
            ends[index] = at + body_end_in(self._buffer[at : at + 2 * _HEAD_SIZE])
            begins[index] = ends[index] - len(decode_record(self._buffer, at).body)
        return self._slices(begins, ends)

    def _stored_properties(self) -> pa.LargeBinaryArray:
        begins = self._property_begins.copy()
        for index in self._odd().tolist():
            record = decode_record(self._buffer, int(self._starts[index]))
            begins[index] = self._ends[index] - len(record.properties)
        return self._slices(begins, self._ends)

    def _odd(self) -> Ints:
        heads = self._heads
        return np.flatnonzero((heads["magic"] == MAGIC_V2) | (heads["sys_flag"] & _V6 != 0))

    def head_field(self, field: pa.Field) -> pa.Array:
        """Return a number from the heads."""
        values = self._heads[field.name][self._usual]
        return pa.array(values.astype(field.type.to_pandas_dtype()), field.type)

    def time(self, field: pa.Field) -> pa.Array:
        """Return a time from the heads, which have milliseconds."""
        values = self._heads[field.name][self._usual].astype(np.int64)
        wrong = (values < TIME_MIN_MS) | (values > TIME_MAX_MS)
        values = np.where(wrong, 0, values) * 1000
        return pa.array(values, pa.int64(), mask=wrong if wrong.any() else None).cast(field.type)

    def topics(self, field: pa.Field) -> pa.Array:
        """Return the topic of the queue, which is also the topic that the message was sent to."""
        return self._topics.cast(field.type)

    def roles(self, field: pa.Field) -> pa.Array:
        """Return the roles: first deliveries, or stranded ones."""
        roles = pa.repeat(pa.scalar(FIRST, field.type), len(self._usual))
        listed_from = self._context.listed_from
        if listed_from is None:
            return roles
        topics, codes = self._topics.dictionary.to_pylist(), self._topics.indices.to_numpy()
        queue_ids = self._heads["queue_id"][self._usual].astype(np.int64)
        queues, place = np.unique(codes.astype(np.int64) << 32 | queue_ids, return_inverse=True)
        begins = [listed_from(topics[each >> 32], each & 0xFFFFFFFF) for each in queues.tolist()]
        is_listed = self._heads["commit_log_offset"][self._usual] >= np.array(begins)[place]
        return roles if is_listed.all() else pc.if_else(pa.array(is_listed), roles, STRANDED)

    def nothing(self, field: pa.Field) -> pa.Array:
        """Return nulls, for columns that first deliveries do not have."""
        return pa.nulls(len(self._usual), field.type)

    @cached_property
    def _properties(self) -> pa.LargeBinaryArray:
        return self._slices(self._property_begins[self._usual], self._ends[self._usual])

    def message_ids(self, field: pa.Field) -> pa.Array:
        """Return the message ids that consumers see."""
        keys, found = property_slices(self._properties, UNIQ_KEY)
        if found.all() and is_plain(keys):
            return keys.cast(field.type)
        made = [
            ledger_id(key.decode("utf-8", "replace")) if has_key else self._id_by_place(index)
            for index, (key, has_key) in enumerate(
                zip(keys.to_pylist(), found.tolist(), strict=True)
            )
        ]
        return pa.array(made, field.type)

    def _id_by_place(self, index: int) -> str:
        which = self._usual[index]
        at = int(self._starts[which]) + _STORE_HOST_AT
        host = self._buffer[at : at + _STORE_HOST_SIZE]
        place = int(self._heads["commit_log_offset"][which])
        return ledger_id(id_without_key(b"", FIRST, host, place))

    def tags(self, field: pa.Field) -> pa.Array:
        """Return the tags. Null: there is none."""
        values, found = property_slices(self._properties, TAGS)
        if is_ascii(values):
            texts = values.cast(field.type)
        else:
            decoded = [value.decode("utf-8", "replace") for value in values.to_pylist()]
            texts = pa.array(decoded, field.type)
        return texts if found.all() else pc.if_else(pa.array(found), texts, None)

    def content_crcs(self, field: pa.Field) -> pa.Array:
        """Return the checksum of each body as it was sent."""
        if not self._check_body:
            return self.nothing(field)
        heads = self._heads[self._usual]
        ends = self._body_ends[self._usual]
        view = memoryview(self._buffer)
        bounds = zip((ends - heads["body_size"]).tolist(), ends.tolist(), strict=True)
        packed = heads["sys_flag"] & COMPRESSED != 0
        if not packed.any():
            sums = [crc32(view[begin:end]) & CRC_MASK for begin, end in bounds]
            return pa.array(sums, field.type)
        made = [None if each is None else crc32(each) & CRC_MASK for each in self._contents]
        return pa.array(made, field.type)

    @cached_property
    def _contents(self) -> list[bytes | memoryview | None]:
        """The bodies as they were sent. None: it cannot be unpacked here."""
        ends = self._body_ends[self._usual]
        begins = ends - self._heads["body_size"][self._usual]
        flags = self._heads["sys_flag"][self._usual]
        view = memoryview(self._buffer)
        return [
            content_of(self._buffer[begin:end], flag) if flag & COMPRESSED else view[begin:end]
            for begin, end, flag in zip(begins.tolist(), ends.tolist(), flags.tolist(), strict=True)
        ]

    def message_digests(self, field: pa.Field) -> pa.Array:
        """Return the digest of each message; see `message_digest.py`."""
        if not self._check_body:
            return self.nothing(field)
        names = self._topics.dictionary.to_pylist()
        codes = self._topics.indices.to_pylist()
        begins, ends = self._property_begins[self._usual], self._ends[self._usual]
        parts = zip(codes, begins.tolist(), ends.tolist(), self._contents, strict=True)
        made = [
            None
            if content is None
            else stored_digest(names[code], self._buffer[begin:end], content)
            for code, begin, end, content in parts
        ]
        return pa.array(made, field.type)


_MAKERS: dict[str, Callable[[_Records, pa.Field], pa.Array]] = {
    **dict.fromkeys(LogRow._fields, _Records.head_field),
    **dict.fromkeys(("consumer_group", "delay_level", "reason", "due_time"), _Records.nothing),
    **dict.fromkeys(("topic", "queue_topic"), _Records.topics),
    **dict.fromkeys(("born_time", "store_time"), _Records.time),
    "role": _Records.roles,
    "message_id": _Records.message_ids,
    "tag": _Records.tags,
    "content_crc": _Records.content_crcs,
    "message_digest": _Records.message_digests,
}
