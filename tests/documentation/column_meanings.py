"""What the columns of our tables mean, where their definitions do not say it."""

from collections.abc import Mapping

OF_ALL: Mapping[str, str] = {
    "actor": "who did it",
    "attempt": "how many attempts began",
    "consumer_group": "the consumer group",
    "create_date": "when the row was written",
    "digest_id": "the digest that has it; null: none yet",
    "duty": "the duty that one process at a time does",
    "in_doubt": "an attempt ended in an unknown way",
    "key_digest": "the SHA-256 of the key",
    "lease_until": "when the owner's claim ends",
    "message_id": "the message",
    "message_key": "the key by which people find the message",
    "next_time": "when its next turn is due",
    "note": "the last error, or a person's reason",
    "number": "always 1: the table has one row",
    "owner": "the process that has it now; null: none",
    "run_id": "the run of the reconciliation",
    "seq": "the number of the row",
    "state": "see above",
    "told_date": "when it was reported",
    "topic": "the topic",
    "update_date": "when the row changed last",
    "consume_date": "when the effect was committed",
}
"""A column of any table -> its meaning."""

OF_TABLES: Mapping[str, Mapping[str, str]] = {
    "alert": {
        "escalation_seq": "the row of the escalation",
        "notifier": "the notifier's name",
    },
    "audit": {
        "action": "what was done: retry, void and others",
        "changed": "1: something was changed; 0: it was not",
        "detail": "a JSON object: why, and what was there before",
        "run_id": "the run whose repair it was; null: a person's",
    },
    "business_key": {"business_key": "the beginning of the key, for people"},
    "confirmation": {
        "notices": "how many notices came",
        "lease_until": "when the next attempt is expected; null: none",
    },
    "escalation": {
        "kind": "what happened: a dead letter, stuck and others",
        "reason": "why",
        "open_key": "unique while it is open; null: it is closed",
        "close_date": "when it was closed; null: it is open",
        "close_reason": "why it was closed",
    },
    "idempotent_call": {
        "scope": "keys are unique within it",
        "call_key": "the beginning of the key, for people",
        "fingerprint": "the SHA-256 of the arguments that must not change",
        "result": "the returned value in JSON",
        "finish_date": "when the call ended",
        "expire_date": "when the key is forgotten",
    },
    "identity": {"identity": "sixteen random digits: this database"},
    "notifier": {
        "name": "the notifier",
        "digest_time": "when its digest was begun",
        "failures": "failed attempts in a row",
    },
    "process": {
        "owner": "the process",
        "application": "the application's name",
        "host": "the machine",
        "pid": "the process number",
        "package_version": "the release of reliable_mq",
        "clock_ahead": "seconds that its clock is ahead of the database's",
        "handling": "a JSON object: the longest handling of each group, in seconds",
        "start_date": "when it began",
        "seen_date": "when it was last seen",
    },
    "reconcile_finding": {
        "verdict": "the verdict",
        "evidence": "a JSON object: the proof",
        "first_run_id": "the run that found it first",
    },
    "reconcile_run": {
        "as_of": "the moment of the judgement",
        "since": "messages from this time on; null: all",
        "until": "messages before this time; null: all",
        "grace_seconds": "how young a message may be before it is judged",
        "store": "the broker's store, or the cluster",
        "verdicts": "a JSON object: how many of each verdict",
        "ledgers": "a JSON object: rows read of each ledger",
        "findings": "how many findings",
        "is_clean": "no finding, and every ledger whole",
        "finish_date": "when it ended",
        "kind": "full or increment",
        "previous_run_id": "the run that this increment continues",
        "read_to": "a JSON object: how far each database was read",
        "log_ends": "a JSON object: how far each broker's log was read",
        "watermark": "the earliest of `read_to`",
        "state": "where the open messages' events lie",
        "carried": "how many messages are open",
        "whole": "a JSON object: what is missing of each ledger",
        "managed": "a JSON list: the managed topics",
        "report": "the folder of the run",
    },
    "resend_topic": {
        "is_paused": "a person paused it",
        "paused_until": "when the pause ends; null: a person ends it",
        "failures": "failed sends in a row",
        "probes": "how often it was probed",
        "probe_time": "when it is probed next; null: it is open",
    },
    "retention": {
        "stubs_removed_until": "stubs from before may be gone",
        "logs_removed_until": "consume logs from before may be gone",
        "reconciled_until": "what changed later is not reconciled yet; null: nobody reconciles",
    },
    "schema_version": {"version_num": "the revision of the tables"},
    "watched_time": {"known": "a JSON object: the last look at the clocks, and their jumps"},
}
"""Table without its prefix -> column -> its meaning there."""


def meaning_of(table: str, column: str) -> str:
    """Return the meaning of a column of a table, which is named without its prefix."""
    return OF_TABLES.get(table, {}).get(column) or OF_ALL.get(column, "")
