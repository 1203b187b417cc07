"""Which command of mqadmin asks which request, for every request that tools make of a broker or a
name server. A request that no command makes is asked with Apache's admin client in
`java/Consumption.java`, or byte by byte in `tests/broker_core/probes`.
"""

from collections.abc import Mapping

from reliable_mq.wire.codes import RequestCode as Ask

AT_NAME_SERVER: Mapping[Ask, str] = {
    Ask.PUT_KV_CONFIG: "updateKvConfig",
    Ask.GET_KV_CONFIG: "updateOrderConf",
    Ask.DELETE_KV_CONFIG: "deleteKvConfig",
    Ask.GET_ROUTEINFO_BY_TOPIC: "topicRoute",
    Ask.GET_BROKER_CLUSTER_INFO: "clusterList",
    Ask.WIPE_WRITE_PERM_OF_BROKER: "wipeWritePerm",
    Ask.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: "topicList",
    Ask.DELETE_TOPIC_IN_NAMESRV: "deleteTopic",
    Ask.UPDATE_NAMESRV_CONFIG: "updateNamesrvConfig",
    Ask.GET_NAMESRV_CONFIG: "getNamesrvConfig",
    Ask.ADD_WRITE_PERM_OF_BROKER: "addWritePerm",
}

AT_BROKER: Mapping[Ask, str] = {
    Ask.UPDATE_AND_CREATE_TOPIC: "updateTopic",
    Ask.UPDATE_AND_CREATE_TOPIC_LIST: "updateTopicList",
    Ask.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: "exportMetadata",
    Ask.GET_ALL_TOPIC_CONFIG: "exportMetadata",
    Ask.UPDATE_BROKER_CONFIG: "updateBrokerConfig",
    Ask.GET_BROKER_CONFIG: "getBrokerConfig",
    Ask.GET_BROKER_RUNTIME_INFO: "brokerStatus",
    Ask.SEARCH_OFFSET_BY_TIMESTAMP: "printMsg",
    Ask.GET_MAX_OFFSET: "printMsg",
    Ask.GET_MIN_OFFSET: "printMsg",
    Ask.PULL_MESSAGE: "queryMsgByOffset",
    Ask.QUERY_MESSAGE: "queryMsgByKey",
    Ask.VIEW_MESSAGE_BY_ID: "queryMsgById",
    Ask.SEND_MESSAGE_V2: "sendMessage",
    Ask.UPDATE_CONSUMER_OFFSET: "cloneGroupOffset",
    Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "updateSubGroup",
    Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "updateSubGroupList",
    Ask.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "exportMetadata",
    Ask.GET_SUBSCRIPTIONGROUP_CONFIG: "getConsumerConfig",
    Ask.DELETE_SUBSCRIPTIONGROUP: "deleteSubGroup",
    Ask.GET_TOPIC_STATS_INFO: "topicStatus",
    Ask.GET_CONSUMER_CONNECTION_LIST: "consumerConnection",
    Ask.GET_PRODUCER_CONNECTION_LIST: "producerConnection",
    Ask.GET_ALL_PRODUCER_INFO: "producer",
    Ask.GET_CONSUME_STATS: "consumerProgress",
    Ask.GET_BROKER_CONSUME_STATS: "brokerConsumeStats",
    Ask.DELETE_TOPIC_IN_BROKER: "deleteTopic",
    Ask.INVOKE_BROKER_TO_RESET_OFFSET: "resetOffsetByTime",
    Ask.QUERY_TOPIC_CONSUME_BY_WHO: "statsAll",
    Ask.GET_CONSUMER_RUNNING_INFO: "consumerStatus",
    Ask.CONSUME_MESSAGE_DIRECTLY: "queryMsgById",
    Ask.VIEW_BROKER_STATS_DATA: "statsAll",
    Ask.CLEAN_UNUSED_TOPIC: "cleanUnusedTopic",
    Ask.CLEAN_EXPIRED_CONSUMEQUEUE: "cleanExpiredCQ",
    Ask.DELETE_EXPIRED_COMMITLOG: "deleteExpiredCommitLog",
    Ask.QUERY_CONSUME_QUEUE: "queryCq",
    Ask.SET_MESSAGE_REQUEST_MODE: "setConsumeMode",
    Ask.GET_BROKER_HA_STATUS: "haStatus",
    Ask.RESET_MASTER_FLUSH_OFFSET: "resetMasterFlushOffset",
    Ask.GET_BROKER_EPOCH_CACHE: "getBrokerEpoch",
    Ask.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: "updateColdDataFlowCtrGroupConfig",
    Ask.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: "removeColdDataFlowCtrGroupConfig",
    Ask.GET_COLD_DATA_FLOW_CTR_INFO: "getColdDataFlowCtrInfo",
    Ask.SET_COMMITLOG_READ_MODE: "setCommitLogReadAheadMode",
}
