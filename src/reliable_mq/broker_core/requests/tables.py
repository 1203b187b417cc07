"""The broker's tables as a whole, for tools that export them and brokers that copy them.

Source: Apache RocketMQ `AdminBrokerProcessor`, `TopicConfigAndMappingSerializeWrapper`.
"""

from reliable_mq.broker_core.names import system_topics
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply


def get_all_topic_config(state: BrokerState, request: Request) -> Command:
    """GET_ALL_TOPIC_CONFIG."""
    return reply(request.command, body=state.topics.wrapped())


def get_all_subscription_group_config(state: BrokerState, request: Request) -> Command:
    """GET_ALL_SUBSCRIPTIONGROUP_CONFIG."""
    return reply(request.command, body=state.groups.text().encode())


def get_all_consumer_offset(state: BrokerState, request: Request) -> Command:
    """GET_ALL_CONSUMER_OFFSET."""
    return reply(request.command, body=state.offsets.text().encode())


def get_all_delay_offset(state: BrokerState, request: Request) -> Command:
    """GET_ALL_DELAY_OFFSET: how far each delay level was delivered."""
    return reply(request.command, body=fastjson.dumps(state.schedule.to_json()))


def get_broker_ha_status(state: BrokerState, request: Request) -> Command:
    """GET_BROKER_HA_STATUS: of a master that has no slaves."""
    body = {
        "haClientRuntimeInfo": {
            **dict.fromkeys(("activatedTime", "lastReadTimestamp", "lastWriteTimestamp"), 0),
            **dict.fromkeys(("maxOffset", "transferredByteInSecond"), 0),
        },
        "haConnectionInfo": [],
        "inSyncSlaveNums": 0,
        "master": True,
        "masterCommitLogMaxOffset": state.store.log.end,
    }
    return reply(request.command, body=fastjson.dumps(body))


def get_broker_epoch_cache(_state: BrokerState, request: Request) -> Command:
    """GET_BROKER_EPOCH_CACHE: only brokers under a controller have one."""
    return reply(
        request.command, ResponseCode.SYSTEM_ERROR, "this request only for controllerMode "
    )


def reset_master_flush_offset(_state: BrokerState, request: Request) -> Command:
    """RESET_MASTER_FLUSH_OFFSET: means something to slaves only; a master does nothing."""
    return reply(request.command)


def get_system_topic_list(state: BrokerState, request: Request) -> Command:
    """GET_SYSTEM_TOPIC_LIST_FROM_BROKER."""
    names = sorted(system_topics() | state.topics.own())
    return reply(request.command, body=fastjson.dumps({"topicList": names}))
