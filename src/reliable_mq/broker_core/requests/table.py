"""Which function answers which request code."""

from collections.abc import Callable, Mapping

from reliable_mq.broker_core.requests import admin, groups, offsets, pull, send, send_back
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command

Handler = Callable[[BrokerState, Request], Command | None]

HANDLERS: Mapping[int, Handler] = {
    RequestCode.SEND_MESSAGE: send.send_message,
    RequestCode.SEND_MESSAGE_V2: send.send_message,
    RequestCode.SEND_BATCH_MESSAGE: send.send_message,
    RequestCode.PULL_MESSAGE: pull.pull_message,
    RequestCode.LITE_PULL_MESSAGE: pull.pull_message,
    RequestCode.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
    RequestCode.GET_MAX_OFFSET: offsets.get_max_offset,
    RequestCode.GET_MIN_OFFSET: offsets.get_min_offset,
    RequestCode.HEART_BEAT: groups.heart_beat,
    RequestCode.UNREGISTER_CLIENT: groups.unregister_client,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: groups.get_consumer_list_by_group,
    RequestCode.LOCK_BATCH_MQ: groups.lock_batch_mq,
    RequestCode.UNLOCK_BATCH_MQ: groups.unlock_batch_mq,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back.consumer_send_msg_back,
    RequestCode.UPDATE_AND_CREATE_TOPIC: admin.update_and_create_topic,
    RequestCode.GET_TOPIC_CONFIG: admin.get_topic_config,
}
