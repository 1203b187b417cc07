"""What a client may be told, with the defaults of Apache's Java client where it has one."""

import re
from typing import TYPE_CHECKING, Any

import msgspec

from reliable_mq import old_names
from reliable_mq.client.connecting.security import TLS, Credentials
from reliable_mq.client.sending.queue_choice import KEY_HASHES
from reliable_mq.errors import ConfigurationError
from reliable_mq.limits import (
    FRAME_SIZE_MAX,
    MESSAGE_BODY_SIZE_MAX,
    PULL_COUNT_MAX,
    PULL_SIZE_MAX,
)
from reliable_mq.wire.compression import KINDS, how_to_install, is_installed

BODY_SIZE_LIMIT = FRAME_SIZE_MAX - 256 * 1024
"""What is left of a frame for a body, whatever its header says: of its 32 KiB of properties each
byte may become six as JSON writes it."""
INSTANCE_NAME_LENGTH_MAX = 100
NO_COMPRESSION = "none"

_MAY_BE_ZERO = ("retries", "busy_wait_seconds")
_NAMESPACE = re.compile(r"[0-9A-Za-z_-]*")
_INSTANCE_NAME = re.compile(rf"([\w#-][\w.#-]{{0,{INSTANCE_NAME_LENGTH_MAX - 1}}})?", re.ASCII)


def _by_old_name(old: str, new: str) -> property:
    def read(settings: Any) -> Any:
        old_names.tell_caller(f"ClientSettings.{old_names.now_called(old, new)}")
        return getattr(settings, new)

    return property(read, doc=f"`{new}`.")


class _OldNamesRead(msgspec.StructMeta):
    """Of settings that are also given by their old names. `msgspec` calls no `__init__`."""

    def __init__(self, name: str, bases: tuple[type, ...], space: dict[str, Any], **_: Any) -> None:
        super().__init__(name, bases, space)
        for old, new in old_names.CLIENT_SETTINGS.items():
            if old in self.__struct_fields__:
                sentence = old_names.now_called(old, new)
                raise ConfigurationError(f"{name} declares the field {old}: {sentence}")
            if not hasattr(self, old):  # no __getattr__: that would slow all attributes down
                setattr(self, old, _by_old_name(old, new))

    if not TYPE_CHECKING:  # type checkers see the fields of today only

        def __call__(self, *given: Any, **named: Any) -> Any:
            """Make settings of what is given."""
            written = old_names.written_in(named, old_names.CLIENT_SETTINGS)
            if not written:
                return super().__call__(*given, **named)
            named = old_names.read(named, old_names.CLIENT_SETTINGS, old_names.tell_caller)
            try:
                return super().__call__(*given, **named)
            except ConfigurationError as error:
                text = old_names.as_written(str(error), written)
            raise ConfigurationError(text)


class ClientSettings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    metaclass=_OldNamesRead,
):
    """A name says its unit; a number without one counts things.

    Earlier names (`old_names.CLIENT_SETTINGS`) work, with a warning that has the new one.

    Raises:
        ConfigurationError: when a value cannot work, or a setting has both of its names.
    """

    #: how the broker knows this application when it sends
    producer_group: str = "reliable_mq_producer"
    #: leads the names of topics and groups where several share a cluster: orders is shop%orders
    namespace: str = ""

    #: this client's own name on its machine, the same after a restart; brokers know it as
    #: HOST@instance_name. "": a new one each time
    instance_name: str = ""
    #: where groups that broadcast keep their offsets; "": `.rocketmq_offsets` in the user's home
    offset_folder: str = ""

    #: the account, where a cluster has access control: every request is signed
    credentials: Credentials | None = None
    #: encrypts all connections; None: they are plain
    tls: TLS | None = None

    request_timeout_seconds: float = 3.0
    connect_timeout_seconds: float = 3.0
    #: how long who sends one message at a time, again and again, looks for its answer before it
    #: sleeps: being woken takes long where a processor has gone to sleep. It stops where others
    #: want the processor, or answers take longer; 0: not at all
    busy_wait_seconds: float = 0.0003
    #: tries of a send after the first one
    retries: int = 2
    #: a try that another broker could make as well is given up after so long, when more are left;
    #: the time-out divided by the tries that are left, if that is longer
    try_timeout_seconds: float = 1.0
    #: the first pause before the same broker is tried again; each may be four times the last, up to
    #: the longest. After "busy" it is any part of that, by chance, else up to the half shorter
    backoff_seconds: float = 0.05
    backoff_seconds_max: float = 2.0
    #: which queue an ordering key leads to: "crc32", or "java" for a topic to which Java producers
    #: send the same keys (`SelectMessageQueueByHash`); a change moves the keys of a topic
    key_hash: str = "crc32"
    #: turn away for a while from brokers that were slow or did not answer
    avoids_slow_brokers: bool = True
    #: larger bodies, and batches with a larger sum, are refused before they are sent
    body_bytes_max: int = MESSAGE_BODY_SIZE_MAX
    #: what bodies are compressed by: "none", "zlib", or "lz4" and "zstd", which are extras
    compression: str = "none"
    #: smaller bodies are left as they are, and those of batches
    compress_from_bytes: int = 4096
    #: messages that a client keeps on their way, and bytes of their bodies
    in_flight_count_max: int = 10_000
    in_flight_bytes_max: int = 64 * 1024 * 1024
    #: how many batches `send_many` keeps on their way
    batches_in_flight: int = 8
    batch_count_max: int = 256
    batch_bytes_max: int = 1024 * 1024
    #: the number of queues asked for when a first send creates its topic
    new_topic_queues: int = 4

    route_refresh_seconds: float = 30.0
    heartbeat_seconds: float = 30.0
    #: leave subscriptions that a broker knows out of heartbeats (Apache's client: False)
    heartbeat_v2: bool = True
    rebalance_seconds: float = 20.0
    #: rebalance again so soon when a queue could not be had or a topic is not there yet
    rebalance_retry_seconds: float = 1.0
    #: what has moved is committed so often; a kill lets the messages since then come again
    offset_commit_seconds: float = 1.0

    lock_renew_seconds: float = 20.0
    #: how long a granted queue lock is trusted; a broker keeps it for 60 s
    lock_valid_seconds: float = 30.0

    pull_count: int = PULL_COUNT_MAX
    pull_bytes: int = PULL_SIZE_MAX
    #: how long a broker may hold a pull that finds nothing
    pull_suspend_seconds: float = 15.0
    pull_timeout_seconds: float = 30.0
    #: pauses after pulls that failed grow up to this (Apache's client: always 3 s)
    pull_retry_seconds_max: float = 1.0

    #: flow limits of one queue: pulled and unfinished messages, their bytes, their offset span
    held_count_max: int = 1000
    held_bytes_max: int = 100 * 1024 * 1024
    held_offset_span_max: int = 2000
    #: what all queues of a client hold together, of all its consumers: bodies as they are unpacked,
    #: properties, and 1 KiB for each message
    held_total_bytes_max: int = 256 * 1024 * 1024

    #: the first local delay of a message that failed and is held; it doubles up to the second
    hold_seconds: float = 1.0
    hold_seconds_max: float = 30.0
    #: try again so late when the broker took neither a message back nor a dead letter
    settle_retry_seconds: float = 5.0
    #: how long `close` waits for handlers that run
    close_timeout_seconds: float = 30.0

    def __post_init__(self) -> None:
        for name, kind in ClientSettings.__annotations__.items():
            _check_value(name, getattr(self, name), kind)
        self._check_names()
        _check_sending(self.key_hash, self.compression)
        if self.body_bytes_max > BODY_SIZE_LIMIT:
            raise ConfigurationError(
                f"body_bytes_max is {self.body_bytes_max}: a frame holds {BODY_SIZE_LIMIT} at most"
            )
        if self.batch_bytes_max > self.body_bytes_max:
            raise ConfigurationError(
                f"batch_bytes_max ({self.batch_bytes_max}) is more than body_bytes_max"
                f" ({self.body_bytes_max}), which holds for whole batches, too"
            )
        if self.lock_renew_seconds >= self.lock_valid_seconds:
            raise ConfigurationError(
                f"lock_renew_seconds ({self.lock_renew_seconds}) must be less than"
                f" lock_valid_seconds ({self.lock_valid_seconds}), or locks lapse between renewals"
            )
        if self.pull_suspend_seconds >= self.pull_timeout_seconds:
            raise ConfigurationError(
                f"pull_suspend_seconds ({self.pull_suspend_seconds}) must be less than"
                f" pull_timeout_seconds ({self.pull_timeout_seconds}), or every idle pull times out"
            )

    if not TYPE_CHECKING:  # type checkers see the fields of today only

        def __replace__(self, **changes: Any) -> Any:
            """Return a copy with changes, for `copy.replace` of Python 3.13 and later."""
            changes = old_names.read(changes, old_names.CLIENT_SETTINGS, old_names.tell_caller)
            return msgspec.structs.replace(self, **changes)

    def _check_names(self) -> None:
        if not self.producer_group:
            raise ConfigurationError("producer_group is empty: give the group a name")
        if not _NAMESPACE.fullmatch(self.namespace):
            raise ConfigurationError(f"namespace is {self.namespace!r}: use a-z A-Z 0-9 _ -")
        if not _INSTANCE_NAME.fullmatch(self.instance_name):
            raise ConfigurationError(
                f"instance_name is {self.instance_name!r}: use 0..{INSTANCE_NAME_LENGTH_MAX} of"
                " a-z A-Z 0-9 _ - . #, the first no dot"
            )


def _check_value(name: str, value: Any, kind: Any) -> None:
    """Check the type of a setting, without showing it: it may be a secret; and that it counts."""
    accepted = int | float if kind is float else kind
    if not isinstance(value, accepted) or (isinstance(value, bool) and kind is not bool):
        wanted = getattr(kind, "__name__", kind)
        raise ConfigurationError(f"{name} is of type {type(value).__name__}, it must be {wanted}")
    if kind in {int, float} and not (value > 0 or (value == 0 and name in _MAY_BE_ZERO)):
        raise ConfigurationError(f"{name} is {value}: it must be positive")


def _check_sending(key_hash: str, compression: str) -> None:
    if key_hash not in KEY_HASHES:
        raise ConfigurationError(f"key_hash is {key_hash!r}: use one of {', '.join(KEY_HASHES)}")
    if compression == NO_COMPRESSION:
        return
    if compression not in KINDS:
        raise ConfigurationError(
            f"compression is {compression!r}: use one of {NO_COMPRESSION}, {', '.join(KINDS)}"
        )
    if not is_installed(compression):
        raise ConfigurationError(
            f"compression is {compression!r}, which is not installed: {how_to_install(compression)}"
        )
