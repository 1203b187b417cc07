"""The settings of a client. Defaults are those of Apache's Java client where it has the setting."""

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
from reliable_mq.message import NamedFields
from reliable_mq.wire.compression import KINDS, how_to_install, is_installed

BODY_SIZE_LIMIT = FRAME_SIZE_MAX - 256 * 1024
"""Largest body that fits a frame with any header. The header has at most 32 KiB of properties, and
JSON may use six bytes for each of them."""
INSTANCE_NAME_LENGTH_MAX = 100
NO_COMPRESSION = "none"

_MAY_BE_ZERO = ("retries", "busy_wait_seconds")
_NAMESPACE = re.compile(r"[0-9A-Za-z_-]*")
_INSTANCE_NAME = re.compile(rf"([\w#-][\w.#-]{{0,{INSTANCE_NAME_LENGTH_MAX - 1}}})?", re.ASCII)


def _by_old_name(old: str, new: str) -> property:
    def read(settings: Any) -> Any:
        old_names.warn_caller(f"ClientSettings.{old_names.now_called(old, new)}")
        return getattr(settings, new)

    return property(read, doc=f"`{new}`.")


class _OldNamesRead(NamedFields):
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
            named = old_names.read(named, old_names.CLIENT_SETTINGS, old_names.warn_caller)
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
    """The settings. A name says its unit; a number without one counts things.

    Earlier names (`old_names.CLIENT_SETTINGS`) work, with a warning that has the new one.

    Raises:
        ConfigurationError: when a value is invalid, or a setting has both of its names.
    """

    #: the group under which this application sends
    producer_group: str = "reliable_mq_producer"
    #: prefix of topic and group names in a shared cluster: with "shop", orders becomes shop%orders
    namespace: str = ""

    #: the client's name on its machine, unchanged by restarts; brokers see HOST@instance_name.
    #: "": a new name each time
    instance_name: str = ""
    #: folder for the offsets of broadcasting groups; "": `.rocketmq_offsets` in the user's home
    offset_folder: str = ""

    #: the account in a cluster with access control; every request is signed. None: no account
    credentials: Credentials | None = None
    #: encrypts all connections; None: plain connections
    tls: TLS | None = None

    #: how long an answer of a name server or broker is awaited
    request_timeout_seconds: float = 3.0
    #: how long a connection may take to open
    connect_timeout_seconds: float = 3.0
    #: how long a caller that sends one message after another polls for the answer before it sleeps;
    #: 0: not at all. Waking up takes long on an idle processor. Polling stops when other threads
    #: need the processor, or answers take longer
    busy_wait_seconds: float = 0.0003
    #: attempts of a send after the first one
    retries: int = 2
    #: timeout of one attempt, if another broker could take the message and attempts are left. The
    #: remaining timeout divided by the remaining attempts, if that is longer
    try_timeout_seconds: float = 1.0
    #: first backoff before the same broker is tried again; it may grow fourfold each time, up to
    #: the maximum. It has jitter: after "busy" anywhere between zero and the backoff, else up to
    #: half less
    backoff_seconds: float = 0.05
    #: the longest backoff between two attempts of a send
    backoff_seconds_max: float = 2.0
    #: how an ordering key selects a queue: "crc32", or "java" if Java producers send the same keys
    #: to the topic (`SelectMessageQueueByHash`). Changing it moves the keys of a topic to other
    #: queues
    key_hash: str = "crc32"
    #: avoid brokers for a while that were slow or did not answer
    avoids_slow_brokers: bool = True
    #: larger bodies, and batches with a larger total, are refused before they are sent
    body_bytes_max: int = MESSAGE_BODY_SIZE_MAX
    #: compression of bodies: "none", "zlib", or "lz4" and "zstd", which are extras
    compression: str = "none"
    #: smaller bodies are not compressed, and bodies in batches never
    compress_from_bytes: int = 4096
    #: the most messages in flight
    in_flight_count_max: int = 10_000
    #: the most bytes of bodies in flight
    in_flight_bytes_max: int = 64 * 1024 * 1024
    #: how many batches `send_many` may have in flight
    batches_in_flight: int = 8
    #: the most messages of one batch
    batch_count_max: int = 256
    #: the most bytes of bodies of one batch
    batch_bytes_max: int = 1024 * 1024
    #: number of queues of a topic that a first send creates
    new_topic_queues: int = 4

    #: interval at which routes of topics are asked for again
    route_refresh_seconds: float = 30.0
    #: interval of heartbeats to brokers
    heartbeat_seconds: float = 30.0
    #: omit subscriptions from heartbeats to brokers that know them (Apache's client: False)
    heartbeat_v2: bool = True
    #: interval at which the members of a group divide the queues anew
    rebalance_seconds: float = 20.0
    #: next rebalance after a queue could not be locked, or a topic does not exist yet
    rebalance_retry_seconds: float = 1.0
    #: interval of offset commits; after a kill, messages since the last commit are delivered again
    offset_commit_seconds: float = 1.0

    #: interval at which locks of queues are renewed
    lock_renew_seconds: float = 20.0
    #: how long a lock of a queue counts as valid; a broker keeps it for 60 s
    lock_valid_seconds: float = 30.0

    #: the most messages of one pull
    pull_count: int = PULL_COUNT_MAX
    #: the most bytes of one pull
    pull_bytes: int = PULL_SIZE_MAX
    #: how long a broker may hold a pull that finds nothing (long polling)
    pull_suspend_seconds: float = 15.0
    #: how long the answer to a pull is awaited; longer than `pull_suspend_seconds`
    pull_timeout_seconds: float = 30.0
    #: maximum backoff after failed pulls (Apache's client: always 3 s)
    pull_retry_seconds_max: float = 1.0

    #: flow control of one queue: the most unfinished messages
    held_count_max: int = 1000
    #: flow control of one queue: the most bytes of unfinished messages
    held_bytes_max: int = 100 * 1024 * 1024
    #: flow control of one queue: the most offsets from its first unfinished message to its last
    held_offset_span_max: int = 2000
    #: flow control of all queues and consumers of a client together: unpacked bodies, properties,
    #: and 1 KiB per message
    held_total_bytes_max: int = 256 * 1024 * 1024

    #: first delay of a failed message that stays in the client; it doubles each time
    hold_seconds: float = 1.0
    #: the longest delay of a failed message that stays in the client
    hold_seconds_max: float = 30.0
    #: delay before another attempt when the broker accepted neither a retry nor a dead letter
    settle_retry_seconds: float = 5.0
    #: how long `close` waits for running handlers
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
            changes = old_names.read(changes, old_names.CLIENT_SETTINGS, old_names.warn_caller)
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
    """Check the type and range of a setting. Never show the value: it may be a secret."""
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
