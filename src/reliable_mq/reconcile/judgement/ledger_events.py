"""Convert the rows of each ledger to events. Pure: Arrow batches in, `EVENTS` out."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reliable_mq.message import NOTICE_TOPIC_PREFIX
from reliable_mq.message_digest import DIGEST_SIZE
from reliable_mq.reconcile.brokers.log_roles import DAMAGED, SYSTEM
from reliable_mq.reconcile.judgement.events import (
    DUPLICATE,
    EVENTS,
    IN_DOUBT,
    LOG,
    ODD,
    RECORD,
    ROLES,
    SKIPPED,
    STUB,
    TELLS,
    TOLD,
    TOMBSTONE,
    UNCONFIRMED,
    VOIDED,
    packed_ids,
)

RECORD_COLUMNS = (
    *("role", "commit_log_offset", "size", "topic", "consumer_group", "message_id"),
    *("queue_topic", "queue_id", "queue_offset", "reconsume_times", "born_time", "store_time"),
    *("content_crc", "message_digest", "reason", "due_time"),
)
STUB_COLUMNS = (
    *("message_id", "topic", "broker_name", "queue_id", "offset", "status", "count"),
    *("create_date", "update_date", "deliver_time", "content_crc", "content_size", "seq"),
    *("required_groups", "given_up_by", "message_digest"),
)
LOG_COLUMNS = (
    *("message_id", "topic", "consumer_group", "broker_name", "queue_id", "offset", "state"),
    *("attempt", "create_date", "consume_date", "owner", "lease_until"),
    *("in_doubt", "duplicate_of", "confirm_to"),
)
NOTICE_COLUMNS = ("message_id", "consumer_group", "state", "create_date", "update_date")
_ROLES = pa.array(ROLES)


def stub_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return stubs (columns `STUB_COLUMNS`) as events.

    An empty body marks the tombstone of a half message, because no message has an empty body. A
    status that we never write becomes `ODD`: such a stub is committed and not settled.
    """
    number = batch["status"]
    is_ours = pc.and_(pc.greater_equal(number, UNCONFIRMED), pc.less_equal(number, VOIDED))
    status = pc.if_else(is_ours, number, ODD).cast(pa.int8())
    given_up_by = batch["given_up_by"]
    is_tombstone = pc.and_(pc.equal(status, VOIDED), pc.equal(batch["content_size"], 0))
    return _events(
        STUB,
        batch,
        id=packed_ids(batch["message_id"]),
        topic=batch["topic"],
        broker=batch["broker_name"],
        queue_id=batch["queue_id"],
        queue_offset=batch["offset"],
        state=pc.if_else(is_tombstone, pa.scalar(TOMBSTONE, pa.int8()), status),
        tries=batch["count"],
        seen=batch["create_date"],
        changed=batch["update_date"],
        until=batch["deliver_time"],
        crc=batch["content_crc"],
        log_offset=batch["seq"],
        size=batch["content_size"],
        required=batch["required_groups"],
        **_digests(batch),
        reason=pc.if_else(pc.equal(given_up_by, ""), None, given_up_by),
    )


def log_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return consume logs (columns `LOG_COLUMNS`) as events.

    Notices between databases are left out: they are no messages of the application.
    """
    batch = _without_notices(batch)
    lease = pc.if_else(pc.is_valid(batch["owner"]), batch["lease_until"], None)
    return _events(
        LOG,
        batch,
        id=packed_ids(batch["message_id"]),
        topic=batch["topic"],
        consumer_group=batch["consumer_group"],
        broker=batch["broker_name"],
        queue_id=batch["queue_id"],
        queue_offset=batch["offset"],
        state=batch["state"],
        tries=batch["attempt"],
        seen=batch["create_date"],
        changed=batch["consume_date"],
        until=lease,
        marks=pc.bit_wise_or(
            _marks(batch, {"in_doubt": IN_DOUBT, "duplicate_of": DUPLICATE, "confirm_to": TELLS}),
            _bit(pc.equal(batch["duplicate_of"], batch["message_id"]), SKIPPED),
        ),
    )


def notice_events(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return notices of consumer groups (columns `NOTICE_COLUMNS`) as events like consume logs.

    A notice has no queue position and no owner, and its number of attempts is unknown.
    """
    consumed = pc.equal(batch["state"], 1)
    return _events(
        TOLD,
        batch,
        id=packed_ids(batch["message_id"]),
        consumer_group=batch["consumer_group"],
        state=batch["state"],
        seen=batch["create_date"],
        changed=pc.if_else(consumed, batch["update_date"], None),
    )


def record_events(batch: pa.RecordBatch, broker: str) -> pa.RecordBatch:
    """Return records of a broker's log (columns `RECORD_COLUMNS`) as events.

    System records without a message, and notices between databases, are left out. Damage has the
    id null.
    """
    batch = _without_notices(batch)
    batch = batch.filter(pc.not_equal(batch["role"], SYSTEM))
    is_damage = pc.equal(batch["role"], DAMAGED)
    return _events(
        RECORD,
        batch,
        id=packed_ids(pc.if_else(is_damage, None, batch["message_id"])),
        topic=batch["topic"],
        consumer_group=batch["consumer_group"],
        broker=pa.repeat(pa.scalar(broker), batch.num_rows),
        queue_id=batch["queue_id"],
        queue_offset=batch["queue_offset"],
        state=pc.index_in(batch["role"], _ROLES),
        tries=batch["reconsume_times"],
        seen=batch["store_time"],
        changed=batch["born_time"],
        until=batch["due_time"],
        crc=batch["content_crc"],
        **_digests(batch),
        log_offset=batch["commit_log_offset"],
        size=batch["size"],
        queue_topic=batch["queue_topic"],
        reason=batch["reason"],
    )


def _digests(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """Return the two halves of each digest as numbers. Null: there is no digest."""
    if "message_digest" not in batch.schema.names:  # an export of an older release
        return {}
    column = batch["message_digest"].fill_null(bytes(DIGEST_SIZE)).cast(pa.binary(DIGEST_SIZE))
    begin = column.offset * DIGEST_SIZE
    data = memoryview(column.buffers()[1])[begin : begin + len(column) * DIGEST_SIZE]
    halves = np.frombuffer(data, np.int64).reshape(-1, 2)
    is_null = batch["message_digest"].is_null().to_numpy(zero_copy_only=False)
    return {f"digest_{number}": pa.array(halves[:, number - 1], mask=is_null) for number in (1, 2)}


def _marks(batch: pa.RecordBatch, bits: dict[str, int]) -> pa.Array:
    """Return the bits of the columns that are true (booleans) or not null (texts)."""
    marks = pa.repeat(pa.scalar(0, pa.int8()), batch.num_rows)
    for name, bit in bits.items():
        column = batch[name]
        is_set = column if pa.types.is_boolean(column.type) else pc.is_valid(column)
        marks = pc.bit_wise_or(marks, _bit(is_set, bit))
    return marks


def _bit(is_set: pa.Array, bit: int) -> pa.Array:
    """Return a bit where a condition is true."""
    set_bits = pc.if_else(pc.fill_null(is_set, False), pa.scalar(bit, pa.int8()), 0)
    return set_bits.cast(pa.int8())


def _without_notices(batch: pa.RecordBatch) -> pa.RecordBatch:
    is_notice = pc.fill_null(pc.starts_with(batch["topic"], NOTICE_TOPIC_PREFIX), False)
    return batch.filter(pc.invert(is_notice)) if pc.any(is_notice).as_py() else batch


def _events(kind: int, batch: pa.RecordBatch, **columns: Any) -> pa.RecordBatch:
    """Return columns as events. Missing columns are null; missing `marks` are 0."""
    count = batch.num_rows
    known = {"kind": pa.repeat(pa.scalar(kind, pa.int8()), count), **columns}
    known.setdefault("marks", pa.repeat(pa.scalar(0, pa.int8()), count))
    return pa.record_batch(
        [
            known[field.name].cast(field.type)
            if field.name in known
            else pa.nulls(count, field.type)
            for field in EVENTS
        ],
        schema=EVENTS,
    )
