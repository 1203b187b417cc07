"""The broker's properties: read them, and change them at run time.

Source: Apache RocketMQ `AdminBrokerProcessor`, `Configuration`.
"""

import msgspec

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.config_reading import changed_config, shown_properties
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.errors import ConfigurationError
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.java_properties import format_properties
from reliable_mq.wire.peer_texts import read_properties

log = limited_log(__name__)

# Fixed facts of this broker, under property names that tools read (`exportConfigs`).
_FACTS = {"useTLS": False}
_PROCESSORS = "clientCallbackExecutorThreads"  # `exportMetrics` reads the CPU count from here
_AUDIT_STAYS = (
    "auditFileSize and auditFileCount can only be raised while the broker runs: with less room, "
    "the oldest lines of the audit would go; set them in its file of settings, and start it again"
)
# Ours; the doctor reads them.
EXPOSED, LOG_EXPOSED, HAS_NAME_SERVER = "openToEverybody", "haOpenToEverybody", "ownNameServer"
_BLACK_LIST = frozenset({"brokerConfigPath", "rocketmqHome", "configBlackList"})


def get_broker_config(state: BrokerState, request: Request) -> Command:
    """GET_BROKER_CONFIG: facts about this broker and its supported properties, one per line."""
    supported = shown_properties(state.config)
    # In Apache a name with dots is a Java system property, not part of the settings.
    values = {name: value for name, value in supported.items() if "." not in name}
    values |= {**_FACTS, _PROCESSORS: state.processors, EXPOSED: state.is_exposed}
    values |= {LOG_EXPOSED: state.is_log_exposed, HAS_NAME_SERVER: state.has_name_server}
    version = msgspec.json.encode(state.config_version).decode()
    body = format_properties(values).encode()
    return reply(request.command, ext={"version": version}, body=body)


def update_broker_config(state: BrokerState, request: Request) -> Command:
    """UPDATE_BROKER_CONFIG: the properties change at once, until the broker stops.

    Unknown properties are ignored, as in Apache. Misspelt ones are refused, and properties that the
    broker reads only at its start; Apache accepts such a change, but it has no effect.
    """
    changes = read_properties(request.command.body)
    if changes.keys() & _BLACK_LIST:
        raise RequestRefused(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
    try:
        config, warnings = changed_config(state.config, changes)
    except ConfigurationError as error:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, str(error)) from error
    now = state.config
    is_less = config.audit_file_size < now.audit_file_size
    if is_less or config.audit_file_count < now.audit_file_count:
        raise RequestRefused(ResponseCode.NO_PERMISSION, _AUDIT_STAYS)
    for warning in warnings:
        broker_events.BROKER_SETTING_DOUBTFUL.log(log, problem=warning)
    if config != state.config:
        _apply(state, config, request.now_ms)
    return reply(request.command)


def _apply(state: BrokerState, config: BrokerConfig, now_ms: int) -> None:
    state.config_version.advance(now_ms)
    state.change_config(config, now_ms)
