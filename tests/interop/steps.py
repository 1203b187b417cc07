"""mqadmin's commands, in order, with how their output is compared.

Words in capitals stand for what is different at each of the two that are asked: the addresses NS
and BROKER, the ids of the messages of the last @produce (ID0, ID1, ... by the client, PLACE0, ...
by the broker), CLIENT for the id of the consumer that the last @who named, and FOLDER for a folder
of its own, in which FILES are. Later steps see what earlier ones did. Left out are the commands
that only look at local files, startMonitoring, which prints nothing, and those of parts that this
broker does not have (slaves, controller, static topics, users).
"""

from typing import NamedTuple

FILES = {
    "topics.json": '[{"topicName":"listed1","readQueueNums":3,"writeQueueNums":3,"perm":6},'
    '{"topicName":"listed2","readQueueNums":1,"writeQueueNums":1,"perm":4}]',
    "groups.json": '[{"groupName":"listed1","retryMaxTimes":5},{"groupName":"listed2"}]',
}


class Step(NamedTuple):
    """One command.

    `settles`: what it prints may lag behind for a while. `only`: compare the lines that match this.
    `is_subset`: compare the lines `name = value` or `name : value` of names that ours prints,
    except `ours_only`, which Apache's has not, or has with another default.
    `differs` says why the output is not the same.
    """

    command: str
    settles: bool = False
    only: str = ""
    is_subset: bool = False
    ours_only: tuple[str, ...] = ()
    differs: str = ""

    @property
    def words(self) -> list[str]:
        """The command's words; a word that holds spaces is written with ~ for each."""
        return [word.replace("~", " ") for word in self.command.split()]


TOPICS = [
    Step("updateTopic -n NS -c DefaultCluster -t orders -r 2 -w 2"),
    Step("topicRoute -n NS -t orders"),
    Step("topicRoute -n NS -t nowhere"),
    Step("topicClusterList -n NS -t orders"),
    Step("topicStatus -n NS -t orders"),
    Step("topicStatus -n NS -t nowhere"),
    Step("updateTopic -n NS -b BROKER -t orders -r 2 -w 2"),
    Step("updateTopic -n NS -b BROKER -t fifo -a +message.type=FIFO -r 1 -w 1"),
    Step("updateTopic -n NS -b BROKER -t bad -a +message.type=MIXED"),
    Step("updateTopic -n NS -b BROKER -t bad -a +no.such=1"),
    Step("updateTopic -n NS -b BROKER -t a?b"),
    Step("updateTopic -n NS -b BROKER -t SELF_TEST_TOPIC"),
    Step("updateTopicPerm -n NS -b BROKER -t orders -p 4"),
    Step("updateTopicPerm -n NS -c DefaultCluster -t orders -p 6"),
    Step("updateTopicPerm -n NS -b BROKER -t nowhere -p 6"),
    Step("allocateMQ -n NS -t orders -i 1.1.1.1,2.2.2.2"),
    Step("topicList -n NS"),
    Step("topicRoute -n NS -t BenchmarkTest"),
    Step("topicRoute -n NS -t DefaultCluster"),
    Step("topicRoute -n NS -t DefaultCluster_REPLY_TOPIC"),
    Step("topicRoute -n NS -t RMQ_SYS_TRANS_HALF_TOPIC"),
    Step("topicRoute -n NS -t RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"),
    Step("topicRoute -n NS -t RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"),
    Step("topicRoute -n NS -t rmq_sys_REVIVE_LOG_DefaultCluster"),
    Step("topicRoute -n NS -t rmq_sys_SYNC_BROKER_MEMBER_same"),
    Step("topicRoute -n NS -t rmq_sys_wheel_timer"),
]

MESSAGES = [
    Step("@produce NS producers orders 2 6"),
    Step("topicStatus -n NS -t orders", settles=True),
    Step("queryCq -n NS -t orders -q 0 -i 0 -c 2 -b BROKER", settles=True),
    Step("queryCq -n NS -t orders -q 0 -i 9 -c 2"),
    Step("queryCq -n NS -t orders -q 9 -i 0 -c 2"),
    Step("queryMsgByOffset -n NS -b same -t orders -i 0 -o 1"),
    Step("queryMsgByOffset -n NS -b same -t orders -i 0 -o 9"),
    Step("printMsg -n NS -t orders"),
    Step("printMsgByQueue -n NS -t orders -a same -i 1 -p true -f true"),
]

FOUND = [
    Step("queryMsgById -n NS -t orders -i PLACE0"),
    Step("queryMsgById -n NS -t orders -i ID1", settles=True),
    Step("queryMsgById -n NS -t orders -i 7F000001000078BF0000000000700000"),
    Step("queryMsgById -n NS -t orders -i 0"),
    Step("queryMsgByKey -n NS -t orders -k key-3", settles=True),
    Step("queryMsgByKey -n NS -t orders -k key-3 -b 1 -e 2"),
    Step("queryMsgByKey -n NS -t orders -k no-key"),
    Step("queryMsgByUniqueKey -n NS -t orders -i ID2", settles=True),
    Step("queryMsgByUniqueKey -n NS -t orders -i ID2 -a", settles=True),
    Step("queryMsgByUniqueKey -n NS -t orders -i 0"),
    Step("queryMsgTraceById -n NS -i ID2"),
]

GROUPS = [
    Step("updateSubGroup -n NS -c DefaultCluster -g made -s true -r 3"),
    Step("updateSubGroup -n NS -b BROKER -g made2 -d true"),
    Step("updateSubGroup -n NS -b BROKER -g a?b"),
    Step("getConsumerConfig -n NS -g made"),
    Step("getConsumerConfig -n NS -g nobody"),
    Step("consumerProgress -n NS -g made"),
    Step("consumerConnection -n NS -g made"),
    Step("consumerStatus -n NS -g made"),
    Step("producerConnection -n NS -g nobody -t orders"),
]

CLIENTS = [
    Step("@consume NS consumers orders 6"),
    Step("consumerProgress -n NS -g consumers", settles=True),
    Step("consumerProgress -n NS -g consumers -s true", settles=True),
    Step("consumerProgress -n NS -g consumers -t orders -c DefaultCluster", settles=True),
    Step("consumerProgress -n NS", settles=True),
    Step("consumerConnection -n NS -g consumers", settles=True),
    Step("consumerStatus -n NS -g consumers", settles=True),
    Step("consumerStatus -n NS -g consumers -s", settles=True),
    Step("producerConnection -n NS -g producers -t orders", settles=True),
    Step("producer -n NS -b BROKER", settles=True),
    Step("brokerConsumeStats -n NS -b BROKER", settles=True),
    Step("topicList -n NS -c", settles=True),
    Step("statsAll -n NS -t orders", only="orders", settles=True),
]

# A consumer that is online is asked, given messages, and sent back.
CONSUMERS = [
    Step("@who NS consumers"),
    Step("consumerStatus -n NS -g consumers -i CLIENT -s", only="^0|^orders|^%RETRY|^#"),
    Step("consumerStatus -n NS -g consumers -i nobody"),
    Step("queryMsgById -n NS -t orders -i PLACE0 -g consumers -d CLIENT"),
    Step("queryMsgById -n NS -t orders -i PLACE0 -g consumers -d nobody"),
    Step("queryMsgByUniqueKey -n NS -t orders -i ID3 -g consumers -d CLIENT", settles=True),
    Step("queryMsgById -n NS -t orders -i PLACE0", settles=True),
    Step("resetOffsetByTime -n NS -g consumers -t orders -s 0"),
    Step("consumerProgress -n NS -g consumers", settles=True),
    Step("cloneGroupOffset -n NS -s consumers -d heirs -t orders"),
    Step("consumerProgress -n NS -g heirs", settles=True),
    Step("cloneGroupOffset -n NS -s nobody -d heirs -t orders"),
    Step("cloneGroupOffset -n NS -s consumers -d heirs -t nowhere"),
    Step("resetOffsetByTime -n NS -g heirs -t orders -s 0"),
    Step("consumerProgress -n NS -g heirs", settles=True),
    Step("skipAccumulatedMessage -n NS -g heirs -t orders"),
    Step("consumerProgress -n NS -g heirs", settles=True),
    Step("resetOffsetByTime -n NS -g heirs -t orders -s 0 -b BROKER -q 1 -o 2"),
    Step("resetOffsetByTime -n NS -g heirs -t orders -s 0 -b BROKER -q 1 -o 77"),
    Step("consumerProgress -n NS -g heirs", settles=True),
    Step("resetOffsetByTime -n NS -g nobody -t orders -s 0"),
    Step("resetOffsetByTime -n NS -g consumers -t nowhere -s 0"),
    Step("skipAccumulatedMessage -n NS -g nobody -t orders"),
    Step("setConsumeMode -n NS -b BROKER -t orders -g heirs -m POP -q 2"),
    Step("setConsumeMode -n NS -c DefaultCluster -t orders -g heirs -m PULL"),
    Step("setConsumeMode -n NS -b BROKER -t nowhere -g heirs -m POP"),
    Step("setConsumeMode -n NS -b BROKER -t %RETRY%heirs -g heirs -m POP"),
]

# After the clients: Apache's broker goes on listing some of the tools that were here and left.
VISITORS = [
    Step("consumeMessage -n NS -t orders -g readers -b same -i 0 -o 0 -c 2"),
    Step("sendMessage -n NS -t orders -p a~body -k key -c red -b same -i 1"),
    Step("checkMsgSendRT -n NS -t orders -a 3 -s 8", only="#Broker Name"),
    Step("sendMsgStatus -n NS -b same -s 8 -c 2", only="status=SEND_OK"),
    Step("@until same clusterRT -n NS -a 2 -s 8 -i 1"),
    Step("clusterList -n NS -m", settles=True),
    Step("brokerStatus -n NS -b BROKER", only="^msg|^putMessage(Times|Size|Average)", settles=True),
]

# The check of message types is the proxy's at Apache's, where clients of the 5.x kind connect.
OURS_ONLY = (
    *("enableTopicMessageTypeCheck", "openToEverybody", "ownNameServer", "haOpenToEverybody"),
    *("haAllowedAddresses", "haAllowedNames", "haTlsEnable", "haMasterAddress", "slaveFlush"),
    *("auditFileCount", "auditFileSize"),
    *("authenticationEnabled", "authenticationWhitelist"),
    *("authorizationEnabled", "authorizationWhitelist"),
    *("quotasOfGroups", "quotasOfTopics", "quotasOfUsers"),
    *(f"max{what}PerSecondOf{of}" for what in ("Bytes", "Messages") for of in ("Group", "Topic")),
    *("maxBytesPerSecondOfUser", "maxMessagesPerSecondOfUser", "maxConnections"),
    *("maxConnectionsOfAddress", "maxNewConnectionsPerSecondOfAddress", "maxGroups"),
    *("maxGroupsOfUser", "maxTopics", "maxTopicsOfUser", "maxTimedMessages", "maxReceivedBytes"),
    *("maxUnsentBytes", "maxWaitingPullBytes", "maxWaitingPullBytesOfConnection"),
    "maxWaitingPullsOfConnection",
    # Both have these, with other defaults: see decision 076.
    *("haListenPort", "inSyncReplicas"),
)

SETTINGS = [
    Step("getBrokerConfig -n NS -b BROKER", is_subset=True, ours_only=OURS_ONLY),
    Step("getBrokerConfig -n NS -c DefaultCluster", is_subset=True, ours_only=OURS_ONLY),
    Step("updateBrokerConfig -n NS -b BROKER -k maxMessageSize -v 2000000"),
    Step("updateBrokerConfig -n NS -c DefaultCluster -k autoCreateTopicEnable -v false"),
    Step("updateBrokerConfig -n NS -b BROKER -k noSuchThing -v 1"),
    Step("updateBrokerConfig -n NS -b BROKER -k brokerConfigPath -v x"),
    Step(
        "updateBrokerConfig -n NS -b BROKER -k maxMessageSize -v many",
        differs="Apache accepts it, and goes on with the old value",
    ),
    Step("sendMessage -n NS -t automatic -p body"),
    Step("updateBrokerConfig -n NS -b BROKER -k autoCreateTopicEnable -v true"),
    Step("getNamesrvConfig -n NS", is_subset=True),
    Step("updateNamesrvConfig -n NS -k enableTopicList -v true"),
    Step("updateNamesrvConfig -n NS -k kvConfigPath -v x"),
]

NAME_SERVER = [
    Step("updateKvConfig -n NS -s names -k key -v value"),
    Step("deleteKvConfig -n NS -s names -k key"),
    Step("deleteKvConfig -n NS -s nothing -k key"),
    Step("updateOrderConf -n NS -t orders -m put -v same:2"),
    Step("updateOrderConf -n NS -t orders -m get"),
    Step("updateOrderConf -n NS -t orders -m delete"),
    Step("updateOrderConf -n NS -t orders -m get"),
    Step("updateOrderConf -n NS -t orders -m put"),
]

LISTS = [
    Step("updateTopicList -n NS -b BROKER -f FOLDER/topics.json"),
    Step("topicStatus -n NS -t listed1"),
    Step("topicRoute -n NS -t listed2"),
    Step("updateSubGroupList -n NS -b BROKER -f FOLDER/groups.json"),
    Step("getConsumerConfig -n NS -g listed1"),
    Step("exportConfigs -n NS -c DefaultCluster -f FOLDER"),
    Step("@file FOLDER/configs.json"),
    Step("exportMetadata -n NS -c DefaultCluster -f FOLDER"),
    Step("@file FOLDER/metadata.json"),
    Step("exportMetadata -n NS -b BROKER -t -f FOLDER"),
    Step("@file FOLDER/topic.json"),
    Step("exportMetadata -n NS -b BROKER -g -f FOLDER"),
    Step("@file FOLDER/subscriptionGroup.json"),
    Step("exportMetrics -n NS -c DefaultCluster -f FOLDER"),
    Step("@file FOLDER/metrics.json"),
]

COLD = [
    Step("getColdDataFlowCtrInfo -n NS -b BROKER"),
    Step("updateColdDataFlowCtrGroupConfig -n NS -b BROKER -g heirs -v 1024"),
    Step("getColdDataFlowCtrInfo -n NS -c DefaultCluster"),
    Step("removeColdDataFlowCtrGroupConfig -n NS -b BROKER -g heirs"),
    Step("getColdDataFlowCtrInfo -n NS -b BROKER"),
    Step("setCommitLogReadAheadMode -n NS -b BROKER -m 1"),
    Step("setCommitLogReadAheadMode -n NS -c DefaultCluster -m 0"),
    Step("setCommitLogReadAheadMode -n NS -b BROKER -m 5"),
]

CLUSTER = [
    Step("clusterList -n NS", settles=True),
    Step("brokerStatus -n NS -b BROKER", only="brokerActive"),  # the rest is of the moment
    Step("wipeWritePerm -n NS -b same"),
    Step("topicRoute -n NS -t orders"),
    Step("addWritePerm -n NS -b same"),
    Step("topicRoute -n NS -t orders"),
    Step("wipeWritePerm -n NS -b nobody"),
    Step("haStatus -n NS -b BROKER"),
    Step("getBrokerEpoch -n NS -b same"),
    Step("resetMasterFlushOffset -n NS -b BROKER -o 1"),
    Step("cleanUnusedTopic -n NS -b BROKER"),
    Step("cleanExpiredCQ -n NS -b BROKER"),
    Step("deleteExpiredCommitLog -n NS -b BROKER"),
    Step("addBroker -n NS -c BROKER -b nowhere.conf"),
    Step("removeBroker -n NS -c BROKER -b DefaultCluster:same:0"),
]

ENDINGS = [
    Step("@close"),
    Step("deleteSubGroup -n NS -c DefaultCluster -g made -r true"),
    Step("getConsumerConfig -n NS -g made"),
    Step("deleteSubGroup -n NS -b BROKER -g nobody"),
    Step("deleteTopic -n NS -c DefaultCluster -t orders"),
    Step("topicRoute -n NS -t orders"),
    Step("topicStatus -n NS -t orders"),
    Step("deleteTopic -n NS -c DefaultCluster -t nowhere"),
    Step("deleteTopic -n NS -c DefaultCluster -t SELF_TEST_TOPIC"),
    Step("topicList -n NS"),
    Step(  # at last: Apache's broker registers under that name as well, within 30 seconds
        "updateBrokerConfig -n NS -b BROKER -k brokerName -v other",
        differs="ours reads it when it starts",
    ),
]

SCRIPT = [
    *TOPICS,
    *MESSAGES,
    *FOUND,
    *GROUPS,
    *CLIENTS,
    *CONSUMERS,
    *VISITORS,
    *SETTINGS,
    *NAME_SERVER,
    *LISTS,
    *COLD,
    *CLUSTER,
    *ENDINGS,
]
