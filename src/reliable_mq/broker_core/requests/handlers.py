"""The table of request codes and handlers, and the replies when a handler fails."""

from collections.abc import Callable, Mapping

import msgspec

from reliable_mq.broker_core.long_works import Steps
from reliable_mq.broker_core.requests import (
    access,
    ask_client,
    assignment,
    broker_stats,
    cleaning,
    connections,
    consumer_rules,
    consumer_status,
    groups,
    locks,
    notification,
    offset_reset,
    offsets,
    peek,
    pop,
    pop_ack,
    pop_extension,
    progress,
    pull,
    query,
    queue_stats,
    recall,
    replies,
    resumption,
    send,
    send_back,
    settings,
    tables,
    topics,
    transactions,
)
from reliable_mq.broker_core.requests.refusal import RequestRefused, refuse_above
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.broker_core.store.disk import is_out_of_room
from reliable_mq.errors import InvariantBroken, MessageRefused, ProtocolError, StoreError
from reliable_mq.limits import REQUEST_BODY_SIZE_MAX
from reliable_mq.line_limit import limited_log
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import fault_of

log = limited_log(__name__)

Answered = Command | Steps[Command | None] | None
"""The reply; None: it comes later. Of a request that takes long, the steps to the reply."""

Handler = Callable[[BrokerState, Request], Answered]
"""Returns the reply. Raises `RequestRefused` before any change."""

SMALL_ANSWERS: frozenset[int] = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.END_TRANSACTION,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
    }
)
"""Frequent requests whose replies are always small."""

HANDLERS: Mapping[int, Handler] = {
    RequestCode.SEND_MESSAGE: send.send_message,
    RequestCode.SEND_MESSAGE_V2: send.send_message,
    RequestCode.SEND_BATCH_MESSAGE: send.send_message,
    RequestCode.RECALL_MESSAGE: recall.recall_message,
    RequestCode.PULL_MESSAGE: pull.pull_message,
    RequestCode.LITE_PULL_MESSAGE: pull.pull_message,
    RequestCode.POP_MESSAGE: pop.pop_message,
    RequestCode.ACK_MESSAGE: pop_ack.ack_message,
    RequestCode.BATCH_ACK_MESSAGE: pop_ack.batch_ack_message,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: pop_extension.change_invisible_time,
    RequestCode.PEEK_MESSAGE: peek.peek_message,
    RequestCode.QUERY_ASSIGNMENT: assignment.query_assignment,
    RequestCode.NOTIFICATION: notification.notification,
    RequestCode.POLLING_INFO: notification.polling_info,
    RequestCode.CONSUMER_SEND_MSG_BACK: send_back.consumer_send_msg_back,
    RequestCode.SEND_REPLY_MESSAGE: replies.send_reply_message,
    RequestCode.SEND_REPLY_MESSAGE_V2: replies.send_reply_message,
    RequestCode.END_TRANSACTION: transactions.end_transaction,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: resumption.resume_check_half_message,
    RequestCode.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
    RequestCode.GET_MAX_OFFSET: offsets.get_max_offset,
    RequestCode.GET_MIN_OFFSET: offsets.get_min_offset,
    RequestCode.GET_EARLIEST_MSG_STORETIME: offsets.get_earliest_store_time,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset_by_timestamp,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: offset_reset.invoke_broker_to_reset_offset,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: consumer_status.get_consumer_status,
    RequestCode.CLONE_GROUP_OFFSET: offset_reset.clone_group_offset,
    RequestCode.QUERY_CORRECTION_OFFSET: offset_reset.query_correction_offset,
    RequestCode.HEART_BEAT: groups.heart_beat,
    RequestCode.UNREGISTER_CLIENT: groups.unregister_client,
    RequestCode.CHECK_CLIENT_CONFIG: groups.check_client_config,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: groups.get_consumer_list_by_group,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: groups.get_consumer_connection_list,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update_and_create_subscription_group,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: groups.get_subscription_group_config,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: tables.get_all_subscription_group_config,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (
        groups.update_and_create_subscription_group_list
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: groups.delete_subscription_group,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: consumer_rules.update_and_get_group_forbidden,
    RequestCode.SET_MESSAGE_REQUEST_MODE: consumer_rules.set_message_request_mode,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: consumer_rules.get_all_message_request_mode,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: consumer_rules.update_cold_data_flow,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: consumer_rules.remove_cold_data_flow,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: consumer_rules.get_cold_data_flow,
    RequestCode.SET_COMMITLOG_READ_MODE: consumer_rules.set_commit_log_read_mode,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: connections.get_producer_connection_list,
    RequestCode.GET_ALL_PRODUCER_INFO: connections.get_all_producer_info,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: connections.query_topic_consume_by_who,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: connections.query_topics_by_consumer,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: connections.query_subscription_by_consumer,
    RequestCode.GET_CONSUMER_RUNNING_INFO: ask_client.get_consumer_running_info,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: ask_client.consume_message_directly,
    RequestCode.GET_BROKER_CONSUME_STATS: progress.get_broker_consume_stats,
    RequestCode.QUERY_CONSUME_TIME_SPAN: progress.query_consume_time_span,
    RequestCode.QUERY_CONSUME_QUEUE: progress.query_consume_queue,
    RequestCode.GET_BROKER_CONFIG: settings.get_broker_config,
    RequestCode.UPDATE_BROKER_CONFIG: settings.update_broker_config,
    RequestCode.LOCK_BATCH_MQ: locks.lock_batch_mq,
    RequestCode.UNLOCK_BATCH_MQ: locks.unlock_batch_mq,
    RequestCode.UPDATE_AND_CREATE_TOPIC: topics.update_and_create_topic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: topics.update_and_create_topic_list,
    RequestCode.GET_ALL_TOPIC_CONFIG: tables.get_all_topic_config,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: tables.get_system_topic_list,
    RequestCode.GET_BROKER_HA_STATUS: tables.get_broker_ha_status,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: tables.reset_master_flush_offset,
    RequestCode.GET_BROKER_EPOCH_CACHE: tables.get_broker_epoch_cache,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: tables.notify_broker_role_changed,
    RequestCode.GET_ALL_CONSUMER_OFFSET: tables.get_all_consumer_offset,
    RequestCode.GET_ALL_DELAY_OFFSET: tables.get_all_delay_offset,
    RequestCode.GET_TIMER_CHECK_POINT: tables.get_timer_check_point,
    RequestCode.GET_TIMER_METRICS: tables.get_timer_metrics,
    RequestCode.EXCHANGE_BROKER_HA_INFO: tables.exchange_broker_ha_info,
    RequestCode.GET_TOPIC_CONFIG: topics.get_topic_config,
    RequestCode.DELETE_TOPIC_IN_BROKER: topics.delete_topic_in_broker,
    RequestCode.GET_TOPIC_STATS_INFO: queue_stats.get_topic_stats_info,
    RequestCode.GET_CONSUME_STATS: progress.get_consume_stats,
    RequestCode.GET_BROKER_RUNTIME_INFO: broker_stats.get_broker_runtime_info,
    RequestCode.VIEW_BROKER_STATS_DATA: broker_stats.view_broker_stats_data,
    RequestCode.VIEW_MESSAGE_BY_ID: query.view_message_by_id,
    RequestCode.QUERY_MESSAGE: query.query_message,
    RequestCode.DELETE_EXPIRED_COMMITLOG: cleaning.delete_expired_commit_log,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: cleaning.clean_expired_consume_queue,
    RequestCode.CLEAN_UNUSED_TOPIC: cleaning.clean_unused_topic,
    RequestCode.AUTH_CREATE_USER: access.create_user,
    RequestCode.AUTH_UPDATE_USER: access.update_user,
    RequestCode.AUTH_DELETE_USER: access.delete_user,
    RequestCode.AUTH_GET_USER: access.get_user,
    RequestCode.AUTH_LIST_USER: access.list_users,
    RequestCode.AUTH_CREATE_ACL: access.create_acl,
    RequestCode.AUTH_UPDATE_ACL: access.create_acl,
    RequestCode.AUTH_DELETE_ACL: access.delete_acl,
    RequestCode.AUTH_GET_ACL: access.get_acl,
    RequestCode.AUTH_LIST_ACL: access.list_acls,
}

# Every reply to these codes says whether the broker traces. Their body limit is that of messages.
_SENDS = frozenset(
    code
    for code, handler in HANDLERS.items()
    if handler in (send.send_message, replies.send_reply_message)
)


def refuse_large(command: Command) -> None:
    """Refuse a request with a large body, unless it is a send.

    Raises:
        RequestRefused: when it is too large.
    """
    if command.code not in _SENDS:
        refuse_above(len(command.body), REQUEST_BODY_SIZE_MAX, "bytes")


def not_supported(command: Command) -> Command:
    """Return the reply to a request that has no handler."""
    return reply(
        command,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        f" request type {command.code} not supported",
    )


def answer_to_failed(state: BrokerState, request: Request, error: Exception) -> Command:
    """Return the reply to a request whose handler raised.

    A request that does not parse is the client's fault; its code is the one that Apache's broker
    uses for a Java exception. Any other exception is a bug. It must not close the connection or
    affect other commands.

    Raises:
        InvariantBroken: when this is the error: the broker must not go on.
    """
    command = request.command
    match error:
        case InvariantBroken():
            raise error
        case RequestRefused():
            ext = error.ext
            if ext is None and command.code in _SENDS:
                ext = state.send_reply.ext
            return reply(command, error.code, error.remark, ext)
        case MessageRefused():
            return reply(command, ResponseCode.MESSAGE_ILLEGAL, str(error))
        case ProtocolError() | ValueError() | KeyError() | TypeError() | msgspec.MsgspecError():
            return reply(command, ResponseCode.SYSTEM_ERROR, fault_of(error))
        case StoreError() if is_out_of_room(error):
            state.pressure.note_no_file(request.now_ms)
            why = state.pressure.refusal or (ResponseCode.SYSTEM_ERROR, str(error))
            return reply(command, *why)
    return _failed(command, request, error)


def _failed(command: Command, request: Request, error: Exception) -> Command:
    broker_events.REQUEST_FAILED.log(
        log, traceback_of=error, code=command.code, client=request.connection.address
    )
    return reply(command, ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
