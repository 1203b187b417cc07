"""What each request code needs: which resources its request names, and which actions on them.

A request needs, for each resource that it names, one of the listed actions. A request that names
none needs one of the listed actions on the cluster. A code without a row is for super users only.

`OF_APACHE` has the rows of Apache RocketMQ 5.4.0. `OWN` has codes that Apache lets pass with any
credentials, because it has no row, or a row without a resource. `STRICTER` has codes whose row of
Apache leaves a way around a policy, and says which.

Source: Apache RocketMQ `DefaultAuthorizationContextBuilder`, `@RocketMQAction` and
`@RocketMQResource` of the request headers.
"""

from collections.abc import Mapping
from typing import NamedTuple

from reliable_mq.access.policies import Action
from reliable_mq.access.resources import Kind
from reliable_mq.wire.codes import RequestCode as Code

PUB, SUB, GET, LIST = Action.PUB, Action.SUB, Action.GET, Action.LIST
CREATE, UPDATE, DELETE = Action.CREATE, Action.UPDATE, Action.DELETE


class Need(NamedTuple):
    """One resource, or several, that a request names.

    Attributes:
        kind: Topic or Group. A retry topic counts as its group.
        place: a field of the header; with `in_body` a path in the JSON of the body, such as
            "mqSet[].topic".
        actions: one of them is needed.
        in_body: see `place`.
        is_optional: whether the request may leave it out.
        separator: the character between several names; "": there is one.
        retry_actions: needed instead for a retry topic; empty: `actions`.
    """

    kind: Kind
    place: str
    actions: tuple[Action, ...]
    in_body: bool = False
    is_optional: bool = False
    separator: str = ""
    retry_actions: tuple[Action, ...] = ()


class CodeRule(NamedTuple):
    """What a request code needs.

    Attributes:
        needs: resources that its requests name.
        actions: needed on the cluster by a request that names no resource.
        may_name_none: whether a request that names no resource needs nothing.
    """

    needs: tuple[Need, ...]
    actions: tuple[Action, ...]
    may_name_none: bool = False


def _topic(place: str, *actions: Action, **more: bool | str) -> Need:
    return Need(Kind.TOPIC, place, actions, **more)  # type: ignore[arg-type]


def _group(place: str, *actions: Action, **more: bool | str) -> Need:
    return Need(Kind.GROUP, place, actions, **more)  # type: ignore[arg-type]


def _rule(*needs: Need, may_name_none: bool = False) -> CodeRule:
    return CodeRule(needs, needs[0].actions, may_name_none)


def _sent(place: str) -> CodeRule:
    """Return the rule of a send. A consumer sends to its retry topic, so this needs Sub."""
    return _rule(Need(Kind.TOPIC, place, (PUB,), retry_actions=(SUB,)))


def _cluster(*actions: Action) -> CodeRule:
    return CodeRule((), actions)


def _both(action: Action, group: str = "consumerGroup", topic: str = "topic") -> CodeRule:
    return _rule(_group(group, action), _topic(topic, action))


_READ, _CHANGE = _cluster(GET), _cluster(UPDATE)
_HEARD = (
    _group("consumerDataSet[].groupName", SUB, in_body=True),
    _topic("consumerDataSet[].subscriptionDataSet[].topic", SUB, in_body=True),
)
_LOCKED = _rule(
    _group("consumerGroup", SUB, in_body=True), _topic("mqSet[].topic", SUB, in_body=True)
)

OF_APACHE: Mapping[int, CodeRule] = {
    Code.SEND_MESSAGE: _sent("topic"),
    Code.QUERY_MESSAGE: _rule(_topic("topic", SUB, GET)),
    Code.QUERY_CONSUMER_OFFSET: _rule(_topic("topic", SUB, GET), _group("consumerGroup", SUB, GET)),
    Code.UPDATE_CONSUMER_OFFSET: _rule(
        _topic("topic", SUB, UPDATE), _group("consumerGroup", SUB, UPDATE)
    ),
    Code.UPDATE_AND_CREATE_TOPIC: _rule(_topic("topic", CREATE)),
    Code.SEARCH_OFFSET_BY_TIMESTAMP: _rule(_topic("topic", GET)),
    Code.GET_MAX_OFFSET: _rule(_topic("topic", GET)),
    Code.GET_MIN_OFFSET: _rule(_topic("topic", GET)),
    Code.GET_EARLIEST_MSG_STORETIME: _rule(_topic("topic", GET)),
    Code.HEART_BEAT: _rule(*_HEARD, may_name_none=True),
    Code.UNREGISTER_CLIENT: _rule(
        _group("consumerGroup", SUB, is_optional=True), may_name_none=True
    ),
    Code.CONSUMER_SEND_MSG_BACK: _rule(_group("group", SUB)),
    Code.GET_CONSUMER_LIST_BY_GROUP: _rule(_group("consumerGroup", SUB, GET)),
    Code.CHECK_TRANSACTION_STATE: _rule(_topic("topic", PUB, is_optional=True)),
    Code.NOTIFY_CONSUMER_IDS_CHANGED: _rule(_group("consumerGroup", SUB)),
    Code.LOCK_BATCH_MQ: _LOCKED,
    Code.UNLOCK_BATCH_MQ: _LOCKED,
    Code.PUT_KV_CONFIG: _CHANGE,
    Code.GET_KV_CONFIG: _READ,
    Code.DELETE_KV_CONFIG: _CHANGE,
    Code.REGISTER_BROKER: _CHANGE,
    Code.UNREGISTER_BROKER: _CHANGE,
    Code.GET_ROUTEINFO_BY_TOPIC: _rule(
        Need(Kind.TOPIC, "topic", (PUB, SUB, GET), retry_actions=(SUB, GET))
    ),
    Code.GET_TOPIC_STATS_INFO: _rule(_topic("topic", GET)),
    Code.GET_CONSUMER_CONNECTION_LIST: _rule(_group("consumerGroup", GET)),
    Code.GET_PRODUCER_CONNECTION_LIST: _READ,
    Code.WIPE_WRITE_PERM_OF_BROKER: _CHANGE,
    Code.DELETE_SUBSCRIPTIONGROUP: _rule(_group("groupName", DELETE)),
    Code.GET_CONSUME_STATS: _rule(
        _group("consumerGroup", GET),
        _topic("topic", GET, is_optional=True),
        _topic("topicList", GET, is_optional=True, separator=";"),
    ),
    Code.DELETE_TOPIC_IN_BROKER: _rule(_topic("topic", DELETE)),
    Code.DELETE_TOPIC_IN_NAMESRV: _CHANGE,
    Code.REGISTER_TOPIC_IN_NAMESRV: _CHANGE,
    Code.GET_KVLIST_BY_NAMESPACE: _READ,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: _both(UPDATE, "group"),
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _both(GET, "group"),
    Code.QUERY_TOPIC_CONSUME_BY_WHO: _rule(_topic("topic", GET)),
    Code.QUERY_CONSUME_TIME_SPAN: _both(GET, "group"),
    Code.GET_CONSUMER_RUNNING_INFO: _rule(_group("consumerGroup", GET)),
    Code.QUERY_CORRECTION_OFFSET: _rule(
        _group("filterGroups", GET, is_optional=True, separator=","),
        _group("compareGroup", GET),
        _topic("topic", GET),
    ),
    Code.CONSUME_MESSAGE_DIRECTLY: _rule(
        _group("consumerGroup", SUB), _topic("topic", SUB, is_optional=True)
    ),
    Code.CLONE_GROUP_OFFSET: _rule(
        _group("destGroup", UPDATE), _topic("topic", UPDATE, is_optional=True)
    ),
    Code.VIEW_BROKER_STATS_DATA: _READ,
    Code.GET_BROKER_CONSUME_STATS: _READ,
    Code.QUERY_CONSUME_QUEUE: _rule(
        _topic("topic", GET, is_optional=True), _group("consumerGroup", GET, is_optional=True)
    ),
    Code.QUERY_DATA_VERSION: _READ,
    Code.RESUME_CHECK_HALF_MESSAGE: _rule(_topic("topic", UPDATE, is_optional=True)),
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT: _both(SUB, "producerGroup"),
    Code.ADD_WRITE_PERM_OF_BROKER: _CHANGE,
    Code.GET_ALL_PRODUCER_INFO: _READ,
    Code.QUERY_TOPICS_BY_CONSUMER: _rule(_group("group", GET)),
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER: _rule(
        _group("group", GET), _topic("topic", GET, is_optional=True)
    ),
    Code.GET_TOPIC_CONFIG: _rule(_topic("topic", GET)),
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: _rule(_group("group", GET)),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: _both(UPDATE, "group"),
    Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _rule(_topic("topic", GET)),
    Code.EXPORT_ROCKSDB_CONFIG_TO_JSON: _READ,
    Code.RECALL_MESSAGE: _rule(_topic("topic", PUB)),
    Code.GET_BROKER_MEMBER_GROUP: _READ,
    Code.ADD_BROKER: _CHANGE,
    Code.REMOVE_BROKER: _CHANGE,
    Code.BROKER_HEARTBEAT: _CHANGE,
    Code.NOTIFY_MIN_BROKER_ID_CHANGE: _CHANGE,
    Code.EXCHANGE_BROKER_HA_INFO: _CHANGE,
    Code.RESET_MASTER_FLUSH_OFFSET: _CHANGE,
    Code.CONTROLLER_ALTER_SYNC_STATE_SET: _CHANGE,
    Code.CONTROLLER_ELECT_MASTER: _CHANGE,
    Code.CONTROLLER_REGISTER_BROKER: _CHANGE,
    Code.CONTROLLER_GET_REPLICA_INFO: _READ,
    Code.NOTIFY_BROKER_ROLE_CHANGED: _CHANGE,
    Code.CLEAN_BROKER_DATA: _CHANGE,
    Code.CONTROLLER_GET_NEXT_BROKER_ID: _READ,
    Code.CONTROLLER_APPLY_BROKER_ID: _CHANGE,
    Code.AUTH_CREATE_USER: _CHANGE,
    Code.AUTH_UPDATE_USER: _CHANGE,
    Code.AUTH_DELETE_USER: _CHANGE,
    Code.AUTH_GET_USER: _READ,
    Code.AUTH_LIST_USER: _READ,
    Code.AUTH_CREATE_ACL: _CHANGE,
    Code.AUTH_UPDATE_ACL: _CHANGE,
    Code.AUTH_DELETE_ACL: _CHANGE,
    Code.AUTH_GET_ACL: _READ,
    Code.AUTH_LIST_ACL: _READ,
    Code.POP_MESSAGE: _both(SUB),
    Code.ACK_MESSAGE: _both(SUB),
    Code.PEEK_MESSAGE: _both(SUB),
    Code.CHANGE_MESSAGE_INVISIBLETIME: _both(SUB),
    Code.NOTIFICATION: _both(SUB),
    Code.POLLING_INFO: _both(GET),
}

OWN: Mapping[int, CodeRule] = {
    Code.LITE_PULL_MESSAGE: _rule(_topic("topic", SUB), _group("consumerGroup", SUB)),
    Code.SEND_REPLY_MESSAGE: _sent("topic"),
    Code.SEND_REPLY_MESSAGE_V2: _sent("b"),
    Code.BATCH_ACK_MESSAGE: _rule(
        _group("acks[].c", SUB, in_body=True), _topic("acks[].t", SUB, in_body=True)
    ),
    Code.QUERY_ASSIGNMENT: _rule(
        _group("consumerGroup", SUB, in_body=True), _topic("topic", SUB, in_body=True)
    ),
    Code.CHECK_CLIENT_CONFIG: _rule(
        _group("group", SUB, in_body=True, is_optional=True),
        _topic("subscriptionData.topic", SUB, in_body=True, is_optional=True),
        may_name_none=True,
    ),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: _rule(
        _topic("topicConfigList[].topicName", CREATE, in_body=True)
    ),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _rule(_group("groupName", CREATE, in_body=True)),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _rule(
        _group("groupConfigList[].groupName", CREATE, in_body=True)
    ),
    Code.SET_MESSAGE_REQUEST_MODE: _rule(
        _group("consumerGroup", UPDATE, in_body=True), _topic("topic", UPDATE, in_body=True)
    ),
    Code.GET_ALL_TOPIC_CONFIG: _READ,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _READ,
    Code.GET_ALL_MESSAGE_REQUEST_MODE: _READ,
    Code.GET_ALL_CONSUMER_OFFSET: _READ,
    Code.GET_ALL_DELAY_OFFSET: _READ,
    Code.GET_TIMER_CHECK_POINT: _READ,
    Code.GET_TIMER_METRICS: _READ,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _READ,
    Code.GET_BROKER_CONFIG: _READ,
    Code.UPDATE_BROKER_CONFIG: _CHANGE,
    Code.GET_BROKER_RUNTIME_INFO: _READ,
    Code.GET_BROKER_HA_STATUS: _READ,
    Code.GET_BROKER_EPOCH_CACHE: _READ,
    Code.GET_COLD_DATA_FLOW_CTR_INFO: _READ,
    Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE,
    Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _CHANGE,
    Code.SET_COMMITLOG_READ_MODE: _CHANGE,
    Code.DELETE_EXPIRED_COMMITLOG: _CHANGE,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: _CHANGE,
    Code.CLEAN_UNUSED_TOPIC: _CHANGE,
}

STRICTER: Mapping[int, tuple[CodeRule, str]] = {
    Code.PULL_MESSAGE: (
        _rule(_topic("topic", SUB), _group("consumerGroup", SUB)),
        "a retry topic needs Sub on its own group; Apache asks only for the group that pulls",
    ),
    Code.SEND_MESSAGE_V2: (
        _sent("b"),
        "a retry topic needs Sub on its own group; Apache asks for the header's producer group",
    ),
    Code.SEND_BATCH_MESSAGE: (
        _sent("b"),
        "a retry topic needs Sub on its own group; Apache asks for the header's producer group",
    ),
    Code.END_TRANSACTION: (
        _rule(_topic("topic", PUB, is_optional=True)),
        "without a topic it needs Pub on the cluster; Apache lets it pass",
    ),
    Code.VIEW_MESSAGE_BY_ID: (
        _rule(_topic("topic", GET, is_optional=True)),
        "without a topic it needs Get on the cluster; Apache lets it pass",
    ),
}

RULES: Mapping[int, CodeRule] = {
    **OF_APACHE,
    **OWN,
    **{code: rule for code, (rule, _) in STRICTER.items()},
}
