"""Rules of tools for a group: topics that it may not read, request modes, cold-read thresholds.

Apache's broker slows down groups that read data which is no longer in memory, if
`coldDataFlowControlEnable` is on. By default it only keeps the thresholds for tools; this broker
always does so.
Source: Apache RocketMQ `AdminBrokerProcessor`, `QueryAssignmentProcessor`, `ColdDataCgCtrService`,
`SubscriptionGroupManager`.
"""

import msgspec

from reliable_mq.broker_core.names import is_retry_topic
from reliable_mq.broker_core.request_modes import PATH as MODES_PATH
from reliable_mq.broker_core.request_modes import RequestMode
from reliable_mq.broker_core.requests.refusal import (
    GROUPS_MAX,
    RequestRefused,
    refuse_above,
    refuse_long_names,
)
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.limits import RULES_MAX
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import GroupForbiddenHeader
from reliable_mq.wire.java_int import I64
from reliable_mq.wire.peer_texts import read_json, read_properties

_COLD_READ_THRESHOLDS = {"cgColdReadThreshold": 3 << 20, "globalColdReadThreshold": 100 << 20}
_READ_AHEAD_MODE = "READ_AHEAD_MODE"
_NORMAL, _RANDOM = 0, 1  # the values of madvise


def update_and_get_group_forbidden(state: BrokerState, request: Request) -> Command:
    """UPDATE_AND_GET_GROUP_FORBIDDEN: whether a group may read a topic; sets this on request."""
    header = GroupForbiddenHeader.decode(request.command.ext_fields)
    group, topic = header.group, header.topic
    if header.readable is not None:
        is_forbidden = not header.readable
        if is_forbidden and not state.groups.is_read_forbidden(group, topic):
            refuse_long_names(group, topic)
            if state.groups.forbidden_count >= RULES_MAX:
                raise _too_many_rules("topics forbidden to groups", "allow some of them again")
        state.groups.forbid_reading(group, topic, request.now_ms, is_forbidden=is_forbidden)
        if state.groups.is_dirty:
            state.groups_changed()
    readable = not state.groups.is_read_forbidden(group, topic)
    body = {"group": group, "readable": readable, "topic": topic}
    return reply(request.command, body=fastjson.dumps(body))


def _too_many_rules(what: str, cure: str) -> RequestRefused:
    return RequestRefused(
        ResponseCode.INVALID_PARAMETER,
        f"the broker has {RULES_MAX} {what}, which is the maximum: {cure}",
    )


def set_message_request_mode(state: BrokerState, request: Request) -> Command:
    """SET_MESSAGE_REQUEST_MODE: set whether a group pulls or pops a topic."""
    mode = msgspec.convert(read_json(request.command.body), RequestMode)
    if is_retry_topic(mode.topic):
        raise RequestRefused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
    if state.topics.get(mode.topic) is None:
        raise RequestRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{mode.topic}] not exist")
    if state.find_group(mode.consumer_group, request.now_ms, request.user) is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"
        )
    if not state.request_modes.has(mode) and len(state.request_modes) >= RULES_MAX:
        raise _too_many_rules("modes", "delete unused topics or groups")
    state.request_modes.set_mode(mode)
    state.files.change(MODES_PATH, state.request_modes.dump)
    return reply(request.command)


def forget_modes(state: BrokerState, *, topic: str = "", group: str = "") -> None:
    """Remove the modes of a deleted topic or group."""
    if state.request_modes.forget(topic=topic, group=group):
        state.files.change(MODES_PATH, state.request_modes.dump)


def get_all_message_request_mode(state: BrokerState, request: Request) -> Command:
    """GET_ALL_MESSAGE_REQUEST_MODE."""
    return reply(request.command, body=fastjson.dumps(state.request_modes.to_json()))


def update_cold_data_flow(state: BrokerState, request: Request) -> Command:
    """UPDATE_COLD_DATA_FLOW_CTR_CONFIG: thresholds by group; invalid values are ignored."""
    changes = read_properties(request.command.body)
    refuse_above(len(changes | state.cold_read_thresholds), GROUPS_MAX, "groups")
    refuse_long_names(*changes)
    for group, text in changes.items():
        try:
            state.cold_read_thresholds[group] = msgspec.convert(text, I64, strict=False)
        except msgspec.ValidationError:
            continue
    return reply(request.command)


def remove_cold_data_flow(state: BrokerState, request: Request) -> Command:
    """REMOVE_COLD_DATA_FLOW_CTR_CONFIG: the body is the name of a group."""
    state.cold_read_thresholds.pop(request.command.body.decode(), None)
    return reply(request.command)


def get_cold_data_flow(state: BrokerState, request: Request) -> Command:
    """GET_COLD_DATA_FLOW_CTR_INFO: the thresholds; no group is ever slowed down."""
    body = {
        "runtimeTable": {},
        "configTable": state.cold_read_thresholds,
        **_COLD_READ_THRESHOLDS,
        "globalAcc": 0,
    }
    return reply(request.command, body=msgspec.json.encode(body))


def set_commit_log_read_mode(state: BrokerState, request: Request) -> Command:
    """SET_COMMITLOG_READ_MODE: set whether the operating system reads ahead in the log."""
    ext = request.command.ext_fields
    if not ext:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode param error")
    try:
        mode = int(ext.get(_READ_AHEAD_MODE, ""))
    except ValueError:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode failed"
        ) from None
    if mode not in (_NORMAL, _RANDOM):
        raise RequestRefused(
            ResponseCode.INVALID_PARAMETER, "set commitlog readahead mode param value error"
        )
    config = msgspec.structs.replace(state.config, data_read_ahead=mode == _NORMAL)
    state.change_config(config, request.now_ms)
    return reply(request.command, remark=f"set commitlog readahead mode success, mode: {mode}")
