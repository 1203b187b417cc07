"""The traces of one message, two hours old, at broker "a", of the group "payments"."""

from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
from tests.reconcile.judging import event, rows_of
from tests.reconcile.ledgers import GRACE, LONG_AGO, NOW, message_id

from reliable_mq.reconcile.brokers.log_roles import FIRST
from reliable_mq.reconcile.judgement.events import CONSUMED, EVENTS, LOG, RECORD, ROLES, STUB
from reliable_mq.reconcile.judgement.judge import judge
from reliable_mq.reconcile.judgement.world import World

M, OTHER = message_id(1), message_id(2)
BROKERS = frozenset({"a", "b"})
AROUND = World(NOW, GRACE, NOW - timedelta(seconds=5), frozenset({"orders"}), brokers=BROKERS)


def after(seconds: float) -> datetime:
    return LONG_AGO + timedelta(seconds=seconds)


def judged(*events: dict[str, Any], **world: Any) -> list[dict[str, Any]]:
    around = World(**{**vars(AROUND), **world})
    return rows_of(judge(pa.Table.from_pylist(list(events), EVENTS), around))


def stub(identity: Any = M, **columns: Any) -> dict[str, Any]:
    told = {"required": "payments", "broker": "a", "queue_id": 3, "queue_offset": 5}
    return event(STUB, identity, **told | columns)


def record(role: Any = FIRST, identity: Any = M, **columns: Any) -> dict[str, Any]:
    told = {"broker": "a", "queue_id": 3, "queue_offset": 5, "log_offset": 1_000, "tries": 0}
    return event(RECORD, identity, state=ROLES.index(role), **told | columns)


def log(identity: Any = M, **columns: Any) -> dict[str, Any]:
    told = {"consumer_group": "payments", "broker": "a", "state": CONSUMED}
    return event(LOG, identity, **told | columns)
