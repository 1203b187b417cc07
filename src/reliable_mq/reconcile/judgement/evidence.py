"""The evidence of a finding: the values of the ledgers, as named values and as a sentence. Pure.

Receives a row of the result. Returns the relevant values that are not empty, and one sentence for
the person on call. `recorded_row` goes back: from the evidence to what a repair asks of the row.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from reliable_mq.reconcile.judgement.stub_states import ODD
from reliable_mq.reconcile.judgement.verdict import MEANINGS, Verdict

_STATUS_NAMES = {0: "UNCONFIRMED", 1: "CONFIRMED", 2: "VOIDED", ODD: "none that we write"}
_STATE_NAMES = {0: "RECEIVED", 1: "CONSUMED"}

# Result column -> name in the evidence. Null and empty values are left out.
_VALUES = {
    "message_key": "message_key",
    "ordering_key": "ordering_key",
    "stub_seq": "stub_seq",
    "stub_status": "stub_status",
    "stub_count": "sends",
    "stub_create_date": "created",
    "stub_update_date": "stub_changed",
    "stub_resend_time": "resend_time",
    "stub_broker_name": "acknowledged_by",
    "stub_queue_id": "acknowledged_queue_id",
    "stub_offset": "acknowledged_queue_offset",
    "stub_content_size": "content_size",
    "stub_content_crc": "content_crc",
    "stub_note": "note",
    "stub_given_up_by": "given_up_by",
    "other_stub_create_date": "other_stub_created",
    "record_copies": "records",
    "record_broker_name": "stored_by",
    "record_queue_id": "queue_id",
    "record_queue_offset": "queue_offset",
    "record_commit_log_offset": "commit_log_offset",
    "record_size": "record_size",
    "record_content_crc": "record_crc",
    "record_store_time": "stored",
    "other_commit_log_offsets": "other_commit_log_offsets",
    "differing_commit_log_offset": "differing_commit_log_offset",
    "differing_content_crc": "differing_crc",
    "differing_topic": "differing_topic",
    "progress": "group_progress",
    "queue_begin": "queue_begins_at",
    "retries": "retries",
    "dead_letter_offset": "dead_letter_commit_log_offset",
    "dead_letter_reason": "dead_letter_reason",
    "log_state": "consume_log",
    "log_attempt": "attempts",
    "log_owner": "lease_owner",
    "log_lease_until": "lease_until",
    "log_create_date": "first_received",
    "log_consume_date": "consumed",
    "other_consume_date": "consumed_again",
}
_ROW_KEY = ("message_id", "consumer_group", "topic", "verdict")
_NEWS_ABOVE_ZERO = ("retries", "queue_begin")
_CHECKSUMS = ("stub_content_crc", "record_content_crc", "differing_content_crc")


def evidence_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that prove the verdict of a result row, as JSON values."""
    return {
        name: _plain(column, row[column])
        for column, name in _VALUES.items()
        if row[column] not in (None, "", []) and (row[column] or column not in _NEWS_ABOVE_ZERO)
    }


def recorded_row(finding: Mapping[str, Any], evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a finding again, as far as its evidence has it.

    Times are cut to milliseconds. What the evidence leaves out is None.

    Args:
        finding: its row in the table of findings.
        evidence: its evidence, from `evidence_of`.
    """
    row = {column: evidence.get(name) for column, name in _VALUES.items()}
    row |= {column: finding[column] for column in _ROW_KEY}
    row["stub_status"] = _code(_STATUS_NAMES, row["stub_status"])
    row["log_state"] = _code(_STATE_NAMES, row["log_state"])
    row["stub_update_date"] = _moment(row["stub_update_date"])
    return row


def cut(moment: datetime) -> datetime:
    """Return a time as evidence keeps it: to the millisecond."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _code(names: Mapping[int, str], name: Any) -> int | None:
    return next((code for code, each in names.items() if each == name), None)


def _moment(text: Any) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return found.replace(tzinfo=found.tzinfo or UTC)


def _plain(column: str, value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if column == "stub_status":
        return _STATUS_NAMES.get(value, value)
    if column == "log_state":
        return _STATE_NAMES.get(value, value)
    if column in _CHECKSUMS:
        return f"{value:08x}"
    return value


def sentence(row: Mapping[str, Any]) -> str:
    """Return one sentence: what is wrong, and which values show it."""
    if row["stub_status"] == ODD:
        return f"{_sentence(row)}; another program set the stub's status: {_STATUS_NAMES[ODD]}"
    return _sentence(row)


def _sentence(row: Mapping[str, Any]) -> str:
    data = evidence_of(row)
    match Verdict(row["verdict"]):
        case Verdict.LOST if "acknowledged_queue_offset" in data:
            return (
                f"acknowledged at queue {data['acknowledged_queue_id']} offset"
                f" {data['acknowledged_queue_offset']}, but the log does not have it there"
                " or anywhere else"
            )
        case Verdict.NOT_SENT:
            return f"committed {data.get('created', '')}, {data.get('sends', 0)} sends, no record"
        case Verdict.SENT_NOT_MARKED:
            return f"{_place(data)}; the stub has no position"
        case Verdict.NOT_CONSUMED:
            return f"{_place(data)}; the group is at {data.get('group_progress')}, without a log"
        case Verdict.STUCK if "consume_log" in data:
            return (
                f"RECEIVED at attempt {data.get('attempts')}, lease ended"
                f" {data.get('lease_until', 'long ago')}; the group has passed it"
            )
        case Verdict.CONSUMED_NOT_CONFIRMED:
            return f"consumed {data.get('consumed')}; the stub is {data.get('stub_status')}"
        case Verdict.DEAD_LETTERED:
            return _dead_letter(data)
        case Verdict.CONTENT_DIFFERS | Verdict.FORGED | Verdict.SUPPRESSED as verdict:
            return _difference(verdict, data)
        case Verdict.VOIDED_BUT_CONSUMED:
            return f"consumed {data.get('consumed')} at attempt {data.get('attempts')}"
        case Verdict.DUPLICATE_EFFECT:
            return f"consumed {data.get('consumed')} and again {data.get('consumed_again')}"
        case Verdict.ORPHAN if "commit_log_offset" in data:
            is_known = "stub_status" in data
            why = "its transaction was rolled back" if is_known else "no stub was ever committed"
            return f"{_place(data)}; {why}"
        case verdict:
            return MEANINGS[verdict]


def _difference(verdict: Verdict, data: Mapping[str, Any]) -> str:
    """Return how a record differs from the stub, and what happened to the record that matches."""
    place = f"the record at log offset {data.get('differing_commit_log_offset')}"
    if data.get("content_crc") != data.get("differing_crc"):
        crcs = f"has {data.get('differing_crc')}"
        why = f"the stub's content has crc {data.get('content_crc')}, {place} {crcs}"
    else:
        why = f"{place} has another topic, tag, key or property than the stub, or another content"
    if verdict is Verdict.FORGED:
        why += f"; the right one lies at {data.get('commit_log_offset')}"
    if verdict is Verdict.SUPPRESSED:
        why += f"; the group consumed it {data.get('consumed')}, and the right one was suppressed"
    return why


def _dead_letter(data: Mapping[str, Any]) -> str:
    place = data.get("dead_letter_commit_log_offset")
    if place is None:
        return "the stub says that the group gave it up; the dead letter has left the log"
    reason = data.get("dead_letter_reason", "no reason given")
    return f"{reason}; dead letter at log offset {place}, {data.get('retries', 0)} retries"


def _place(data: Mapping[str, Any]) -> str:
    return (
        f"stored {data.get('stored')} in queue {data.get('queue_id')} at offset"
        f" {data.get('queue_offset')} (log offset {data.get('commit_log_offset')})"
    )
