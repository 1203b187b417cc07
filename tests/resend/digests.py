"""A digest as notifiers get it."""

from datetime import UTC, datetime

from reliable_mq.escalate.escalation import Digest, Escalation, EscalationCount, EscalationKind

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
DIGEST = Digest(
    digest_id="0f" * 16,
    application="shop",
    time=NOON,
    total=3,
    shares=(
        EscalationCount(EscalationKind.DEAD_LETTER, "orders", "payments", 2, NOON),
        EscalationCount(EscalationKind.USED_UP, "orders", "", 1, NOON),
    ),
    items=(
        Escalation(
            kind=EscalationKind.DEAD_LETTER,
            message_id="A" * 32,
            topic="orders",
            reason="attempt 3 of 3 failed: ValueError: <b>1 & 2</b> größer",
            consumer_group="payments",
            message_key="order 17",
            create_date=NOON,
        ),
        Escalation(
            kind=EscalationKind.USED_UP,
            message_id="B" * 32,
            topic="orders",
            reason="no",
            create_date=NOON,
        ),
    ),
)
