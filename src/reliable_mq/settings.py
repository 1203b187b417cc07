"""What an application may set, in code or by `RELIABLE_MQ_*` variables of the environment."""

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Unpack

import msgspec
from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    field_serializer,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
)

from reliable_mq import old_names
from reliable_mq.error_texts import ErrorTexts
from reliable_mq.errors import ConfigurationError
from reliable_mq.limits import TIMER_SECONDS_MAX
from reliable_mq.misspelt import WORDS_OF_OTHERS, meant
from reliable_mq.names import TABLE_PREFIX_PATTERN
from reliable_mq.renamed_settings import RenamedSettings
from reliable_mq.sensitive import checked_names
from reliable_mq.setting_faults import fault_of, not_json
from reliable_mq.signature import signer_of
from reliable_mq.telemetry import application_events
from reliable_mq.telemetry.log_choices import LogFormat, LogLevel
from reliable_mq.unknown_variables import PREFIX, TOLD_VARIABLE, meant_by

if TYPE_CHECKING:
    from reliable_mq.setting_options import AllSettingOptions

log = logging.getLogger(__name__)

Strictness = Literal["warn", "raise", "allow"]
RetentionMode = Literal["rows", "partitions", "off"]
RetentionWaits = Literal["auto", "yes", "no"]

MAIN_DATABASE = "main"
"""The name of the database that the setting `database` leads to."""

EMBEDDED = "embedded:"
"""Before a folder, as a broker: the bundled one, in this process."""

SECONDS_MAX = 3.2e9
"""What is longer, or no number, takes a due time out of the calendar."""

SECRETS_DIR_VARIABLE = "RELIABLE_MQ_SECRETS_DIR"
"""The variable that names a folder with a file for each setting that is not to be a variable."""

VARIABLE_PREFIX = PREFIX
"""Begins the names of variables."""

_HIDDEN = str(SecretStr("hidden"))  # how pydantic shows every secret
_DATABASE_NAME = r"[a-z][a-z0-9_-]{0,31}"

S = TypeVar("S", bound="ClusterSettings")


class ClusterSettings(RenamedSettings):
    """How a cluster is reached: account, encryption, namespace, and the client's own settings.

    `client.configured` makes `ClientSettings` of them. Variables are those of `Settings`.
    """

    model_config = SettingsConfigDict(
        env_prefix=VARIABLE_PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True
    )
    renamed_inside: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "client": old_names.CLIENT_SETTINGS
    }

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], *given: Any, **sources: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return pydantic's sources; a variable names the folder of secret files."""
        folder = EnvSettingsSource(settings_cls).env_vars.get(SECRETS_DIR_VARIABLE.lower())
        files = sources["file_secret_settings"]
        if folder and isinstance(files, SecretsSettingsSource) and files.secrets_dir is None:
            if not Path(folder).is_dir():
                raise ConfigurationError(f"{SECRETS_DIR_VARIABLE}: {folder} is not a folder")
            sources["file_secret_settings"] = SecretsSettingsSource(settings_cls, folder)
        return super().settings_customise_sources(settings_cls, *given, **sources)

    #: leads the names of topics and groups where several share a cluster: orders is shop%orders
    namespace: str = ""
    #: the account, where a cluster has access control: its name
    access_key: str = ""
    #: its secret, with which every request is signed
    secret_key: SecretStr = SecretStr("")
    #: of a temporary account
    security_token: SecretStr = SecretStr("")
    #: encrypts all connections; each of the following settings but `tls_verify` does that, too
    tls: bool = False
    #: a PEM file of the authorities to trust; "" for the system's
    tls_ca: str = ""
    #: a PEM file of this client's certificate and its chain
    tls_cert: str = ""
    #: a PEM file of the certificate's key, unencrypted; "" when `tls_cert` holds it
    tls_key: str = ""
    #: the name that certificates must bear; "" for the host of each address
    tls_hostname: str = ""
    #: False trusts anybody who answers, for tests
    tls_verify: bool = True
    #: other settings of the client: a `ClientSettings`, or some of its fields by name; in the
    #: environment a JSON object. What differs from its defaults goes before the settings above
    client: dict[str, Any] = Field(default_factory=dict, repr=False)

    @field_serializer("client", when_used="json")
    def _without_values(self, given: Mapping[str, object]) -> dict[str, str]:
        """Leave secrets out of JSON. The form for Python has them: settings are copied by it."""
        return dict.fromkeys(given, _HIDDEN)

    @field_validator("client", mode="before")
    @classmethod
    def _client_by_name(cls, given: object) -> object:
        """Take the fields of a `ClientSettings` that differ from their defaults."""
        if not isinstance(given, msgspec.Struct):
            return given
        usual = {each.name: each.default for each in msgspec.structs.fields(given)}
        named = msgspec.structs.asdict(given)
        return {name: value for name, value in named.items() if value != usual[name]}


class Settings(ClusterSettings):
    """Settings of one `ReliableMQ`. A name says its unit; a number without one counts things.

    A variable of the environment has the field's name in capitals after `RELIABLE_MQ_`:
    `RELIABLE_MQ_DATABASE=postgresql+psycopg://…`. What is given in code wins. Earlier names
    (`old_names.SETTINGS`) work everywhere, with a warning that has the new one.
    """

    renamed: ClassVar[Mapping[str, str]] = old_names.SETTINGS

    #: name servers "host:port;host:port", or "embedded:DIR" for the bundled broker in this process
    broker: str = "127.0.0.1:9876"
    #: SQLAlchemy URL; the stubs and consume logs live beside the business rows
    database: str = Field("", repr=False)
    #: further databases, each with its own stubs and consume logs: a name to the SQLAlchemy URL; in
    #: the environment a JSON object
    databases: dict[str, str] = Field(default_factory=dict, repr=False)
    #: Redis URL; without one the database decides alone, at one more commit per message
    redis: str = Field("", repr=False)
    #: prefix of our tables
    table_prefix: str = Field("rmq_", pattern=TABLE_PREFIX_PATTERN)

    #: connections of this process to the database; 0: as many as handlers can run (at least 16),
    #: and four
    database_connections: int = Field(0, ge=0, le=1000)

    #: who sends what a transaction of this process commits: this process ("own"), or any process
    #: that runs consumers or the resend scheduler with this setting ("shared")
    relay: Literal["own", "shared"] = "own"
    #: how far ahead brokers take a message: their timerMaxDelaySec, 7200 for brokers older than
    #: 5.0. What is to arrive later waits in the database, and the resend scheduler sends it
    timer_range_seconds: float = Field(float(TIMER_SECONDS_MAX), gt=0)
    #: how long a new stub is the relay's alone before the resend scheduler may take it
    relay_lease_seconds: float = Field(5.0, gt=0)
    #: how long the scheduler's claim on a stub holds; longer than a send with all its retries
    resend_lease_seconds: float = Field(60.0, gt=0)
    #: the waits between sends of a stub, the last one repeats
    resend_waits_seconds: tuple[float, ...] = (
        *(10.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 420.0, 480.0, 540.0, 600.0),
        *(1200.0, 1800.0, 3600.0, 7200.0),
    )
    #: sends of a stub after which a person is told
    resend_count_max: int = Field(16, ge=1, le=1000)
    #: how long a stub rests when a backlog has not reached it yet
    resend_backlog_wait_seconds: float = Field(5.0, gt=0)
    #: age at which a person is told of a stub that is neither settled nor escalated
    resend_notify_after_seconds: float = Field(86_400.0, gt=0)
    #: how often the scheduler looks
    resend_interval_seconds: float = Field(1.0, gt=0)
    #: how many stubs one look takes
    resend_batch_count: int = Field(500, ge=1, le=10_000)

    #: "rows": settled stubs and consumed logs are removed when their time is over; "partitions":
    #: whole days of them (PostgreSQL, in tables that were created with this setting); "off": never
    retention: RetentionMode = "rows"
    #: whether what was not reconciled stays: "auto": once `reliable-mq reconcile --increment` ran
    retention_waits_for_reconciliation: RetentionWaits = "auto"
    #: how long a stub is kept after it was confirmed or voided
    stub_retention_seconds: float = Field(7 * 86_400.0, gt=0)
    #: how long the log of a consumed message is kept, and longer while its stub is there
    log_retention_seconds: float = Field(30 * 86_400.0, gt=0)
    #: how far back a broker may deliver again: its fileReservedTime, and a day for its cleaning
    replay_window_seconds: float = Field(4 * 86_400.0, gt=0)
    #: the least time from one digest of a notifier to its next; what comes meanwhile is gathered
    escalation_cooldown_seconds: float = Field(900.0, ge=0)
    #: mail server: smtp://host:25, smtp+starttls://name:password@host or smtps://name:password@host
    escalation_mail_server: SecretStr = SecretStr("")
    #: the address that mails come from
    escalation_mail_from: str = ""
    #: the addresses that mails go to, with commas between them
    escalation_mail_to: str = ""
    #: a folder with escalation.subject.txt, escalation.txt or escalation.html instead of ours
    escalation_templates: str = ""
    #: the URL, http or https, that digests are posted to
    escalation_webhook: str = Field("", repr=False)
    #: "whsec_" and 24 to 64 bytes in base64: the key that posts are signed with
    escalation_webhook_secret: SecretStr = SecretStr("")
    #: seconds after which a mail server or a webhook counts as silent
    escalation_timeout_seconds: float = Field(10.0, gt=0, le=60.0)

    #: how long a claim holds that is not renewed; running handlers renew it
    claim_lease_seconds: float = Field(10.0, gt=0)
    #: how long Redis remembers that a message was consumed, so that a copy costs a read only
    duplicate_window_seconds: float = Field(86_400.0, gt=0)
    #: seconds after which Redis counts as unreachable
    redis_timeout_seconds: float = Field(1.0, gt=0)
    #: the waits between attempts of a handler, the last one repeats
    retry_waits_seconds: tuple[float, ...] = (
        *(1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 420.0, 480.0),
        *(540.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0),
    )

    #: "NAME:SECRET,NAME:SECRET": messages are signed by the first key, and consumers have no effect
    #: of one that no key has signed; empty: nothing is signed or checked
    signing_keys: SecretStr = SecretStr("")
    #: True: messages without a signature are refused. False: only wrong signatures are refused; use
    #: it while producers begin to sign
    signing_required: bool = True

    #: what happens when a managed topic is sent to outside of a transaction
    send_outside_transaction: Strictness = "warn"
    #: what happens when a transaction sends a message for which no consumer group is known: the
    #: broker's acknowledgement confirms it; `mq.topic(…, groups=[])` says that this is meant
    send_without_group: Strictness = "warn"
    #: fields of payloads whose values the console and commands show masked, in all topics:
    #: "card_number", or "customer.email"; in the environment a JSON list. See `mq.topic`
    sensitive: tuple[str, ...] = ()
    #: what logs, spans, reasons and alerts have of errors that are not ours. "masked": no values
    #: that libraries quote, and no parameters of statements; "whole": their texts; "types": no text
    error_texts: ErrorTexts = "masked"
    #: how `run` and `resend` write log lines, unless the application has configured logging:
    #: "text", or "json" for one object a line; None: text
    log_format: LogFormat | None = None
    #: the least level of these lines: debug, info, warning, error or critical; None: info
    log_level: LogLevel | None = None
    #: how long a stopping worker waits for its handlers, and a queue that moves to another worker
    #: for its messages; the client's `close_timeout_seconds`, if it is set, goes before it
    shutdown_timeout_seconds: float = Field(30.0, gt=0, allow_inf_nan=False)

    if TYPE_CHECKING:  # pydantic also makes a SecretStr of a text, and a tuple of a list

        def __init__(self, **given: Unpack[AllSettingOptions]) -> None: ...

    @field_serializer("database", "redis", "escalation_webhook", when_used="json")
    def _without_secret(self, given: str) -> str:
        return given and _HIDDEN

    @field_serializer("databases", when_used="json")
    def _without_urls(self, given: Mapping[str, str]) -> dict[str, str]:
        return dict.fromkeys(given, _HIDDEN)

    @field_validator("log_format", "log_level", "error_texts", mode="before")
    @classmethod
    def _in_lower_case(cls, given: object) -> object:
        return given.lower() if isinstance(given, str) else given

    @model_validator(mode="after")
    def _check_durations(self) -> "Settings":
        for name, value in self:
            times = value if isinstance(value, tuple) else (value,)
            if not all(each <= SECONDS_MAX for each in times if isinstance(each, float)):
                raise ValueError(
                    f"{name}={value}: at most {SECONDS_MAX:g} seconds, a hundred years"
                )
        return self

    @field_validator("signing_keys")
    @classmethod
    def _keys_read(cls, value: SecretStr) -> SecretStr:
        try:
            signer_of(value.get_secret_value())
        except ConfigurationError as error:
            raise ValueError(str(error).removeprefix("signing_keys: ")) from None
        return value

    @field_validator("sensitive")
    @classmethod
    def _names_of_fields(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        try:
            checked_names(value, "settings")
        except ConfigurationError as error:
            raise ValueError(str(error).removeprefix("settings: ")) from None
        return value

    @model_validator(mode="after")
    def _windows_fit(self) -> "Settings":
        for name in ("resend_waits_seconds", "retry_waits_seconds"):
            waits = getattr(self, name)
            if not waits or min(waits) <= 0 or list(waits) != sorted(waits):
                raise ValueError(f"{name} must be positive seconds that do not become shorter")
        for name, url in self.databases.items():
            if not url:
                raise ValueError(f"databases: {name!r} has no URL")
            if name == MAIN_DATABASE or not re.fullmatch(_DATABASE_NAME, name):
                raise ValueError(
                    f"databases: {name!r} is not allowed as a name: use a lower-case letter, then "
                    f"letters, digits, _ and -, at most 32 characters, and not {MAIN_DATABASE!r}, "
                    "which is `database`"
                )
        if self.duplicate_window_seconds <= self.claim_lease_seconds:
            raise ValueError("duplicate_window_seconds must be longer than claim_lease_seconds")
        return self


def load_settings(before: Settings | None = None, /, **given: object) -> Settings:
    """Return the settings; what is None is taken from the environment or the default.

    Args:
        before: where given, what is None is taken from these.
        **given: by name, an old one, too.

    Raises:
        ConfigurationError: when a value is wrong, there is no such setting, or a setting has both
            of its names; names the first one.
    """
    kept = {} if before is None else before.model_dump()
    for name in (*kept, *given):
        if name not in Settings.model_fields and name not in Settings.renamed:
            raise ConfigurationError(f"there is no setting {name}{_meant(name)}")
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        kept.pop(Settings.renamed.get(name, name), None)
    for variable, what in unknown_variables().items():
        application_events.SETTING_UNKNOWN.log(log, variable=variable, meant=what)
    return _read(Settings, kept | given)


@contextmanager
def naming_variables(settings: Settings, given: Mapping[str, object]) -> Iterator[None]:
    """Name the variable in an error about one of the settings that code did not give.

    Raises:
        ConfigurationError: the one that was raised, if its text begins with such a setting.
    """
    try:
        yield
    except ConfigurationError as error:
        name = re.split(r"\W", str(error), maxsplit=1)[0]
        if name not in settings.model_fields_set or given.get(name) is not None:
            raise
        variable = f"{VARIABLE_PREFIX}{name.upper()}"
        said = str(error).removeprefix(f"{name} ({variable}): ")
        raise ConfigurationError(f"{variable}: {said}") from error


def load_cluster_settings() -> ClusterSettings:
    """Return what the environment says of the cluster.

    Raises:
        ConfigurationError: when a value is wrong; names the first one.
    """
    return _read(ClusterSettings, {})


def _read(kind: type[S], given: Mapping[str, Any]) -> S:
    try:
        return kind(**given)
    except ValidationError as error:
        raise ConfigurationError(fault_of(error, given, kind.renamed, VARIABLE_PREFIX)) from error
    except ValueError as error:  # pydantic's SettingsError: a variable that has to be JSON
        raise ConfigurationError(not_json(str(error), VARIABLE_PREFIX)) from error


def _meant(name: str) -> str:
    close = None if name in WORDS_OF_OTHERS else _closest(name)
    return f"; did you mean {close}?" if close else meant(name, Settings.model_fields)


def _closest(name: str) -> str | None:
    """Return the setting that `name` is most like, or whose old name it is most like."""
    close = get_close_matches(name, (*Settings.model_fields, *Settings.renamed), n=1)
    return Settings.renamed.get(close[0], close[0]) if close else None


def unknown_variables() -> dict[str, str]:
    """Return what each variable that sets nothing was meant to be, by the variable.

    Without those of which a command has warned already.
    """
    given = EnvSettingsSource(Settings).env_vars
    told = (given.get(TOLD_VARIABLE.lower()) or "").split(",")
    found = meant_by(given, Settings.model_fields, Settings.renamed)
    return {name: what for name, what in found.items() if name not in told}
