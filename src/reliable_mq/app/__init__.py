"""The face of outbox, client, idempotency and resend: `ReliableMQ`, its decorators, its worker."""
