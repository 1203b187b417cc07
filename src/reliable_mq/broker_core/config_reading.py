"""Reads the broker's settings from properties, at the start and when a peer changes them.

Receives properties as texts. Returns a `BrokerConfig`, or says which property is wrong.
"""

import difflib
import ipaddress
from collections.abc import Mapping

import msgspec

from reliable_mq.access.access_settings import SECRET_PROPERTIES, SecretText
from reliable_mq.broker_core.config import (
    ASYNC_FLUSH,
    ASYNC_MASTER,
    DISK,
    RECEIVED,
    SLAVE,
    SYNC_FLUSH,
    SYNC_MASTER,
    BrokerConfig,
)
from reliable_mq.broker_core.config_texts import parse_delay_levels
from reliable_mq.broker_core.quotas import parse_quotas
from reliable_mq.broker_core.store.retention import parse_hours
from reliable_mq.errors import ConfigurationError
from reliable_mq.failover.failover_settings import FailoverSettings, check_failover
from reliable_mq.host_and_port import NotAPlace, host_and_port_of
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX, PORT_MAX
from reliable_mq.plain_text import cut
from reliable_mq.wire.java_properties import as_property

_SHOWN_MAX = 80  # characters of a name or a value in an error or a warning
_UNSUPPORTED_SHOWN_MAX = 50  # unsupported properties that have a warning each


def broker_config(properties: Mapping[str, str]) -> tuple[BrokerConfig, list[str]]:
    """Return the settings, and a warning for each unsupported property.

    A peer may send many such properties. Each of the first 50 has a warning, or is refused as a
    misspelt one: the search for the nearest name takes about 60 us each. One warning counts the
    rest.

    Raises:
        ConfigurationError: when a value does not parse or is out of range, or a name is nearly that
            of a supported property.
    """
    if properties.get("aclEnable", "").strip().lower() == "true":  # no warning: the door stays shut
        raise ConfigurationError(
            "aclEnable=true is the access control of RocketMQ 4.x: set authenticationEnabled=true "
            "and authorizationEnabled=true instead; `reliable-mq access import` reads plain_acl.yml"
        )
    known = {field.encode_name: field.name for field in msgspec.structs.fields(BrokerConfig)}
    unknown = [name for name in properties if name not in known]
    for name in filter(_sounds_like_access, unknown):
        _refuse_misspelt_access(name)
    warnings = [_unsupported(name, list(known)) for name in unknown[:_UNSUPPORTED_SHOWN_MAX]]
    if len(unknown) > _UNSUPPORTED_SHOWN_MAX:
        more = len(unknown) - _UNSUPPORTED_SHOWN_MAX
        warnings.append(f"{more} more properties are not supported and have no effect")
    supported = {name: value for name, value in properties.items() if name in known}
    try:
        config = msgspec.convert(supported, BrokerConfig, strict=False, dec_hook=_secret)
    except msgspec.ValidationError as error:
        raise ConfigurationError(_invalid(supported, str(error))) from error
    _check(config)
    check_failover(config, properties)
    return config, warnings + _idle_quotas(config)


def port_for_slaves(properties: Mapping[str, str], port: int) -> dict[str, str]:
    """Return the property `haListenPort` of a master that does not have it: the next port.

    A broker without `brokerRole` takes no slaves. `port`: the broker's; 0: the system chooses both.
    """
    if properties.get("brokerRole", SLAVE) == SLAVE or "haListenPort" in properties:
        return {}
    return {"haListenPort": str(port + 1 if 0 < port < PORT_MAX else 0)}


def _sounds_like_access(name: str) -> bool:
    return "auth" in name.lower() and len(name) <= _SHOWN_MAX


def _refuse_misspelt_access(name: str) -> None:
    """Refuse a name that is nearly one of access control, also as the last of many."""
    close = difflib.get_close_matches(name, _OF_ACCESS, n=1, cutoff=_MISSPELT)
    if close:
        raise ConfigurationError(_misspelt(name, close[0]))


def _misspelt(name: str, close: str) -> str:
    return f"{name}: there is no such property; did you mean {close}?"


def _secret(kind: type, text: object) -> object:
    """Make the value of a property with a secret, for msgspec."""
    if kind is SecretText and isinstance(text, str):
        return SecretText(text)
    raise NotImplementedError


def _secret_text(value: object) -> str:
    """Return the text of a property with a secret, for msgspec."""
    if isinstance(value, SecretText):
        return value.text
    raise NotImplementedError


_MISSPELT = 0.85
"""The least likeness of two names, by difflib, of which one is a misspelt form of the other."""
_OF_APACHE = frozenset(
    {
        *("accessMessageInMemoryHotRatio", "brokerIP2", "flushConsumerOffsetHistoryInterval"),
        *("mapedFileSizeCommitLog", "mapedFileSizeConsumeQueue", "mappedFileSizeConsumeQueueExt"),
        *("mapperFileSizeBatchConsumeQueue", "minInSyncReplicas", "waitTimeMillsInAckQueue"),
        *("ackThreadPoolQueueCapacity", "pullThreadPoolQueueCapacity"),
        *("putThreadPoolQueueCapacity", "queryThreadPoolQueueCapacity"),
        *("replyThreadPoolQueueCapacity",),
    }
)
"""Properties of Apache's brokers, of the releases from 4.0 to 5.4, that are so like one of ours.

A file of theirs is read with a warning for each.
"""
_READ_ELSEWHERE = (
    *("bindAddress", "storePathRootDir"),
    *("maxBrokers", "maxBrokersOfConnection", "maxRegisteredTopics"),
)
"""Properties that others take out before these are read."""
_OF_ACCESS = (
    *SECRET_PROPERTIES,
    *("authenticationEnabled", "authenticationWhitelist"),
    *("authorizationEnabled", "authorizationWhitelist"),
)
# Objects that are built from these at the start do not follow later changes. Nobody who may change
# properties over the network can switch off access control.
_READ_AT_START = frozenset(
    {
        *("brokerClusterName", "brokerName", "brokerId", "brokerIP1", "listenPort", "namesrvAddr"),
        *("brokerRole", "haListenPort", "haMasterAddress", "inSyncReplicas"),
        *("haAllowedAddresses", "haAllowedNames", "haTlsEnable"),
        *("slaveTimeout", "slaveFlush", "haMaxGapNotInSync"),
        *("enableSlaveActingMaster", "enableRemoteEscape", "skipPreOnline"),
        *("brokerHeartbeatInterval", "brokerNotActiveTimeoutMillis"),
        *(each.encode_name for each in msgspec.structs.fields(FailoverSettings)),
        *("regionId", "traceOn", "flushDiskType", "flushIntervalCommitLog", "messageDelayLevel"),
        *("mappedFileSizeCommitLog", "mappedFileSizeConsumeQueue", "defaultTopicQueueNums"),
        *("traceTopicEnable", "msgTraceTopicName", *_OF_ACCESS),
    }
)


def changed_config(
    config: BrokerConfig, changes: Mapping[str, str]
) -> tuple[BrokerConfig, list[str]]:
    """Return the settings after a change at run time, and warnings; see `broker_config`.

    Raises:
        ConfigurationError: when a value does not parse or is out of range, or when the broker reads
            the property only at its start.
    """
    current = msgspec.to_builtins(config, enc_hook=_secret_text)
    for name in sorted(_READ_AT_START & changes.keys()):
        if name in SECRET_PROPERTIES or changes[name] != as_property(current[name]):
            raise ConfigurationError(
                f"{name}: the broker reads this property only when it starts; change its "
                "configuration and start it again"
            )
    values = {name: as_property(value) for name, value in current.items()}
    return broker_config({**values, **changes})


def shown_properties(config: BrokerConfig) -> dict[str, object]:
    """Return the properties and their values, without those that have a secret."""
    values = msgspec.to_builtins(config, enc_hook=_secret_text)
    return {name: value for name, value in values.items() if name not in SECRET_PROPERTIES}


def _unsupported(name: str, known: list[str]) -> str:
    """Return a warning of an unknown property.

    Raises:
        ConfigurationError: it is a misspelt one of `known`.
    """
    name = cut(name, _SHOWN_MAX)
    spelt = {each.lower(): each for each in (*known, *_READ_ELSEWHERE)}
    close = difflib.get_close_matches(name.lower(), list(spelt), n=1)
    hint = f"; did you mean {spelt[close[0]]}?" if close else ""
    is_other = name in _OF_APACHE or name in _READ_ELSEWHERE
    if close and not is_other and _likeness(close[0], name.lower()) >= _MISSPELT:
        raise ConfigurationError(_misspelt(name, spelt[close[0]]))
    return f"{name}: this property is not supported and has no effect{hint}"


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one, other).ratio()


def _idle_quotas(config: BrokerConfig) -> list[str]:
    """Return a warning if users have quotas, but nobody is a user."""
    limits = (config.user_messages_max, config.user_bytes_max, config.user_quotas)
    if config.authenticates or not any(limits):
        return []
    return ["quotas of users have no effect without access control: set authenticationEnabled=true"]


def _invalid(properties: Mapping[str, str], reason: str) -> str:
    name = reason.rpartition("$.")[2].rstrip("`")
    what = reason.partition(" - at")[0]
    if "matching regex" in what:
        what = _CHARACTERS.get(name, "letters a-z A-Z, digits and % | _ . - only, at least one")
    elif what.startswith("Expected `int`, got"):
        what = f"give a whole number{_unit_of(name)}"
    elif what.startswith("Expected `bool`, got"):
        what = "give true or false"
    return f"{name}={cut(properties.get(name, ''), _SHOWN_MAX)}: {what}"


def _unit_of(name: str) -> str:
    fields = {field.encode_name: field.name for field in msgspec.structs.fields(BrokerConfig)}
    units = [_UNITS[word] for word in fields.get(name, "").split("_") if word in _UNITS]
    return f" of {units[0]}" if units else ""


_UNITS = {
    "hours": "hours",
    "ms": "milliseconds",
    "percent": "percent, such as 75",
    "size": "bytes",
}

_CHARACTERS = {"regionId": "no control characters"}


def _check_quotas(name: str, text: str) -> None:
    try:
        parse_quotas(text)
    except ValueError as error:
        raise ConfigurationError(f"{name}: {error}") from error


def _check_role(config: BrokerConfig) -> None:
    if config.slave_flush not in (DISK, RECEIVED):
        raise ConfigurationError(f"slaveFlush={config.slave_flush}: use {DISK} or {RECEIVED}")
    if config.broker_role not in (ASYNC_MASTER, SYNC_MASTER, SLAVE):
        raise ConfigurationError(
            f"brokerRole={config.broker_role}: use {ASYNC_MASTER}, {SYNC_MASTER} or {SLAVE}"
        )
    if config.broker_id < 0 or config.is_slave != (config.broker_id > 0):
        needed = "a number above 0" if config.is_slave else "0"
        raise ConfigurationError(
            f"brokerId={config.broker_id}: a broker with brokerRole={config.broker_role} has "
            f"{needed}"
        )
    _ = config.slave_networks  # it raises for what is wrong there
    if config.ha_master and not _has_host_and_port(config.ha_master):
        raise ConfigurationError(f"haMasterAddress={cut(config.ha_master, _SHOWN_MAX)}: host:port")


def _has_host_and_port(text: str) -> bool:
    try:
        return host_and_port_of(text).port is not None
    except NotAPlace:
        return False


def _check(config: BrokerConfig) -> None:
    parse_delay_levels(config.delay_levels)
    _ = config.access  # it raises for what is wrong there
    _check_quotas("quotasOfTopics", config.topic_quotas)
    _check_quotas("quotasOfGroups", config.group_quotas)
    _check_quotas("quotasOfUsers", config.user_quotas)
    try:
        parse_hours(config.delete_when)
    except ValueError as error:
        shown = cut(config.delete_when, _SHOWN_MAX)
        raise ConfigurationError(f"deleteWhen={shown}: {cut(str(error), 200)}") from error
    if config.flush_disk_type not in (SYNC_FLUSH, ASYNC_FLUSH):
        raise ConfigurationError(
            f"flushDiskType={config.flush_disk_type}: use {SYNC_FLUSH} or {ASYNC_FLUSH}"
        )
    try:
        ipaddress.ip_address(config.broker_ip)
    except ValueError as error:
        raise ConfigurationError(f"brokerIP1={config.broker_ip}: not an IP address") from error
    _check_role(config)
    if config.message_size_max > MESSAGE_BODY_SIZE_MAX:
        raise ConfigurationError(
            f"maxMessageSize={config.message_size_max}: a record can hold at most "
            f"{MESSAGE_BODY_SIZE_MAX}"
        )
    if config.segment_size < 4096 or config.message_size_max + 65_536 > config.segment_size:
        raise ConfigurationError(
            f"mappedFileSizeCommitLog={config.segment_size}: a segment must hold a message of "
            f"maxMessageSize={config.message_size_max} and 64 KiB"
        )
    if config.transaction_op_size_max + 65_536 > config.segment_size:
        raise ConfigurationError(
            f"transactionOpMsgMaxSize={config.transaction_op_size_max}: a segment of "
            f"mappedFileSizeCommitLog={config.segment_size} must hold a body of this size and "
            "64 KiB"
        )
    if config.timer_file_size < 4096:
        raise ConfigurationError(
            f"mappedFileSizeTimerLog={config.timer_file_size}: at least 4096 bytes are needed"
        )
    if config.queue_file_size < 20 or config.queue_file_size % 20:
        raise ConfigurationError(
            f"mappedFileSizeConsumeQueue={config.queue_file_size}: a multiple of 20 is needed"
        )
