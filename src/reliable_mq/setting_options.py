"""The settings that `ReliableMQ(…)` and `Settings(…)` take by name, for type checkers.

`Settings` describes each of them. A type checker reports a wrong name or type; at run time
`load_settings` does. Earlier names of settings work, but a type checker does not know them.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from pydantic import SecretStr

from reliable_mq.client.settings import ClientSettings
from reliable_mq.error_texts import ErrorTexts
from reliable_mq.settings import RetentionMode, RetentionWaits, Strictness
from reliable_mq.telemetry.log_choices import LogFormat, LogLevel


class SettingOptions(TypedDict, total=False):
    """Fields of `Settings` that have no parameter of their own in `ReliableMQ`."""

    namespace: str
    access_key: str
    secret_key: SecretStr | str
    security_token: SecretStr | str
    tls: bool
    tls_ca: str
    tls_cert: str
    tls_key: str
    tls_hostname: str
    tls_verify: bool

    table_prefix: str
    database_connections: int

    relay: Literal["own", "shared"]
    timer_range_seconds: float
    relay_lease_seconds: float
    resend_lease_seconds: float
    resend_waits_seconds: Sequence[float]
    resend_count_max: int
    resend_backlog_wait_seconds: float
    resend_notify_after_seconds: float
    resend_interval_seconds: float
    resend_batch_count: int

    retention: RetentionMode
    retention_waits_for_reconciliation: RetentionWaits
    stub_retention_seconds: float
    log_retention_seconds: float
    replay_window_seconds: float

    escalation_cooldown_seconds: float
    escalation_mail_server: SecretStr | str
    escalation_mail_from: str
    escalation_mail_to: str
    escalation_templates: str
    escalation_webhook: str
    escalation_webhook_secret: SecretStr | str
    escalation_timeout_seconds: float

    claim_lease_seconds: float
    duplicate_window_seconds: float
    redis_timeout_seconds: float
    retry_waits_seconds: Sequence[float]

    signing_keys: SecretStr | str
    signing_required: bool

    send_outside_transaction: Strictness
    send_without_group: Strictness
    sensitive: Sequence[str]
    error_texts: ErrorTexts
    log_format: LogFormat | None
    log_level: LogLevel | None
    shutdown_timeout_seconds: float


class AllSettingOptions(SettingOptions, total=False):
    """All fields of `Settings`."""

    broker: str
    database: str
    databases: Mapping[str, str]
    redis: str
    client: ClientSettings | Mapping[str, Any]
