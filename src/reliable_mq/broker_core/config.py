"""The broker's settings, with Apache RocketMQ's property names and defaults.

Two defaults differ, to protect acknowledged messages. flushDiskType is SYNC_FLUSH (promise P3).
cleanFileForciblyEnable is false: a full disk removes no message before its fileReservedTime.

Source: Apache RocketMQ `BrokerConfig`, `MessageStoreConfig`.
"""

from typing import Annotated

import msgspec

from reliable_mq.access.access_settings import (
    AccessSettings,
    SecretText,
    access_settings,
)
from reliable_mq.broker_core.config_texts import Network, parse_delay_levels, parse_networks
from reliable_mq.broker_core.delivery.long_poll import PullLimits
from reliable_mq.broker_core.names import TRACE_TOPIC
from reliable_mq.broker_core.pressure import PressureLimits
from reliable_mq.broker_core.store.retention import RetentionRules, hours_ms, parse_hours
from reliable_mq.decodable import decodable
from reliable_mq.errors import ConfigurationError
from reliable_mq.failover.failover_settings import FailoverSettings
from reliable_mq.limits import (
    AUDIT_FILE_COUNT,
    AUDIT_FILE_SIZE,
    COMMIT_LOG_SEGMENT_SIZE,
    CONNECTIONS_MAX,
    CONNECTIONS_OF_ADDRESS_MAX,
    CONSUME_QUEUE_FILE_SIZE,
    CREATED_BY_USER_MAX,
    DELAY_LEVELS_TEXT,
    FRAME_SIZE_MAX,
    GROUPS_MAX,
    MESSAGE_BODY_SIZE_MAX,
    NEW_CONNECTIONS_OF_ADDRESS_MAX,
    PORT_MAX,
    QUEUES_MAX,
    RECEIVED_SIZE_MAX,
    REFUSES_SENDS_PERCENT,
    REMOVES_FILES_PERCENT,
    TIMED_MESSAGES_MAX,
    TOPIC_LENGTH_MAX,
    TOPICS_MAX,
    UNSENT_SIZE_MAX,
    WAITING_PULLS_OF_CONNECTION_MAX,
    WAITING_PULLS_SIZE_MAX,
    WAITING_PULLS_SIZE_OF_CONNECTION_MAX,
)
from reliable_mq.wire.addresses import address_of
from reliable_mq.wire.java_int import I32, I32_MAX
from reliable_mq.wire.properties import CLUSTER, MSG_REGION, TRACE_ON

SYNC_FLUSH = "SYNC_FLUSH"
ASYNC_FLUSH = "ASYNC_FLUSH"
ASYNC_MASTER = "ASYNC_MASTER"
DISK, RECEIVED = "disk", "received"  # `slaveFlush`
SYNC_MASTER = "SYNC_MASTER"
SLAVE = "SLAVE"
_ROLL_MAX = 7 * 24 * 3600 - 60  # half of the timer wheel, less a minute
_TIMER_SLOTS_MS = (100, 200, 500, 1_000)


# Each number has bounds: a time beyond the range of clocks would fail long after it was taken.
_Positive = Annotated[int, msgspec.Meta(ge=1, le=I32_MAX)]
_PullSize = Annotated[int, msgspec.Meta(ge=1, le=FRAME_SIZE_MAX - 64 * 1024)]  # fits into a reply
_BodySize = Annotated[int, msgspec.Meta(ge=1, le=MESSAGE_BODY_SIZE_MAX)]
_QueueCount = Annotated[int, msgspec.Meta(ge=1, le=QUEUES_MAX)]
_AuditSize = Annotated[int, msgspec.Meta(ge=64 * 1024, le=I32_MAX)]
_AuditCount = Annotated[int, msgspec.Meta(ge=1, le=1_000)]
_Port = Annotated[int, msgspec.Meta(ge=0, le=PORT_MAX)]
_Replicas = Annotated[int, msgspec.Meta(ge=1, le=100)]
_Percent = Annotated[int, msgspec.Meta(ge=0, le=100)]
_HaPort = Annotated[int, msgspec.Meta(ge=-1, le=PORT_MAX)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000)]
_Rate = Annotated[int, msgspec.Meta(ge=0, le=I32_MAX)]  # for each second; 0: no limit
_HeldSize = Annotated[int, msgspec.Meta(ge=4 * FRAME_SIZE_MAX, le=I32_MAX)]  # of many peers
_Name = Annotated[str, msgspec.Meta(pattern=r"^[%|a-zA-Z0-9_.-]+$", max_length=TOPIC_LENGTH_MAX)]
_Text = Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f]*$")]  # fits into a property


@decodable
class BrokerConfig(FailoverSettings, frozen=True, kw_only=True):
    """Every property that this broker supports. Times in milliseconds, sizes in bytes."""

    broker_cluster_name: _Name = msgspec.field(default="DefaultCluster", name="brokerClusterName")
    broker_name: _Name = msgspec.field(default="broker-a", name="brokerName")
    broker_id: I32 = msgspec.field(default=0, name="brokerId")
    broker_role: str = msgspec.field(default=ASYNC_MASTER, name="brokerRole")
    ha_port: _HaPort = msgspec.field(default=-1, name="haListenPort")  # -1: no slaves
    ha_sources: str = msgspec.field(default="", name="haAllowedAddresses")
    ha_names: str = msgspec.field(default="", name="haAllowedNames")
    ha_tls: bool = msgspec.field(default=True, name="haTlsEnable")
    ha_master: str = msgspec.field(default="", name="haMasterAddress")
    # Apache's default is 1: with it, SYNC_MASTER does not wait for a slave.
    in_sync_replicas: _Replicas = msgspec.field(default=2, name="inSyncReplicas")
    slave_flush: str = msgspec.field(default=DISK, name="slaveFlush")
    slave_timeout_ms: _Positive = msgspec.field(default=3_000, name="slaveTimeout")
    ha_gap_max: _Positive = msgspec.field(default=256 * 1024 * 1024, name="haMaxGapNotInSync")
    stands_in: bool = msgspec.field(default=False, name="enableSlaveActingMaster")
    delivers_elsewhere: bool = msgspec.field(default=False, name="enableRemoteEscape")
    skips_pre_online: bool = msgspec.field(default=False, name="skipPreOnline")
    heartbeat_ms: _Positive = msgspec.field(default=1_000, name="brokerHeartbeatInterval")
    silent_ms: _Positive = msgspec.field(default=10_000, name="brokerNotActiveTimeoutMillis")
    broker_ip: str = msgspec.field(default="127.0.0.1", name="brokerIP1")
    listen_port: _Port = msgspec.field(default=10911, name="listenPort")
    name_servers: str = msgspec.field(default="", name="namesrvAddr")
    region_id: _Text = msgspec.field(default="DefaultRegion", name="regionId")
    trace_on: bool = msgspec.field(default=True, name="traceOn")
    has_trace_topic: bool = msgspec.field(default=False, name="traceTopicEnable")
    trace_topic: _Name = msgspec.field(default=TRACE_TOPIC, name="msgTraceTopicName")
    flush_disk_type: str = msgspec.field(default=SYNC_FLUSH, name="flushDiskType")
    flush_interval_ms: _Positive = msgspec.field(default=500, name="flushIntervalCommitLog")
    segment_size: _Positive = msgspec.field(
        default=COMMIT_LOG_SEGMENT_SIZE, name="mappedFileSizeCommitLog"
    )
    queue_file_size: _Positive = msgspec.field(
        default=CONSUME_QUEUE_FILE_SIZE, name="mappedFileSizeConsumeQueue"
    )
    message_size_max: _Positive = msgspec.field(
        default=MESSAGE_BODY_SIZE_MAX, name="maxMessageSize"
    )
    is_indexed: bool = msgspec.field(default=True, name="messageIndexEnable")
    index_slots: _Positive = msgspec.field(default=5_000_000, name="maxHashSlotNum")
    index_entries: Annotated[int, msgspec.Meta(ge=2, le=I32_MAX)] = msgspec.field(
        default=20_000_000, name="maxIndexNum"
    )
    reserved_hours: _Positive = msgspec.field(default=72, name="fileReservedTime")
    delete_when: str = msgspec.field(default="04", name="deleteWhen")
    used_percent_max: Annotated[int, msgspec.Meta(ge=10, le=95)] = msgspec.field(
        default=75, name="diskMaxUsedSpaceRatio"
    )
    warning_percent: I32 = msgspec.field(default=90, name="diskSpaceWarningLevelRatio")
    forcibly_percent: I32 = msgspec.field(default=85, name="diskSpaceCleanForciblyRatio")
    data_read_ahead: bool = msgspec.field(default=True, name="dataReadAheadEnable")
    cleans_forcibly: bool = msgspec.field(default=False, name="cleanFileForciblyEnable")
    clean_interval_ms: _Positive = msgspec.field(default=10_000, name="cleanResourceInterval")
    delete_batch_max: _Positive = msgspec.field(default=10, name="deleteFileBatchMax")
    redelete_interval_ms: _Positive = msgspec.field(
        default=120_000, name="redeleteHangedFileInterval"
    )
    send_wait_ms: _Positive = msgspec.field(default=200, name="waitTimeMillsInSendQueue")
    stuck_ms: _Positive = msgspec.field(default=1_000, name="osPageCacheBusyTimeOutMills")
    sends_waiting_max: _Positive = msgspec.field(default=10_000, name="sendThreadPoolQueueCapacity")
    query_count_max: _Positive = msgspec.field(default=32, name="defaultQueryMaxNum")
    delay_levels: str = msgspec.field(default=DELAY_LEVELS_TEXT, name="messageDelayLevel")
    auto_create_topic: bool = msgspec.field(default=True, name="autoCreateTopicEnable")
    auto_create_group: bool = msgspec.field(default=True, name="autoCreateSubscriptionGroup")
    default_topic_queues: _QueueCount = msgspec.field(default=8, name="defaultTopicQueueNums")
    property_filter: bool = msgspec.field(default=False, name="enablePropertyFilter")
    server_side_reset: bool = msgspec.field(default=True, name="useServerSideResetOffset")
    slave_read: bool = msgspec.field(default=False, name="slaveReadEnable")
    in_memory_percent: _Percent = msgspec.field(default=40, name="accessMessageInMemoryMaxRatio")
    long_polling: bool = msgspec.field(default=True, name="longPollingEnable")
    short_polling_ms: _Positive = msgspec.field(default=1_000, name="shortPollingTimeMills")
    pull_count_max: _Positive = msgspec.field(default=32, name="maxTransferCountOnMessageInMemory")
    pull_size_max: _PullSize = msgspec.field(
        default=256 * 1024, name="maxTransferBytesOnMessageInMemory"
    )
    notify_group_changes: bool = msgspec.field(default=True, name="notifyConsumerIdsChangedEnable")
    offset_interval_ms: _Positive = msgspec.field(default=5_000, name="flushConsumerOffsetInterval")
    delay_offset_interval_ms: _Positive = msgspec.field(
        default=10_000, name="flushDelayOffsetInterval"
    )
    register_interval_ms: _Positive = msgspec.field(default=30_000, name="registerNameServerPeriod")
    single_topic_register: bool = msgspec.field(default=False, name="enableSingleTopicRegister")
    reject_transaction_message: bool = msgspec.field(default=False, name="rejectTransactionMessage")
    transaction_timeout_ms: _Positive = msgspec.field(default=6_000, name="transactionTimeOut")
    transaction_check_max: _Positive = msgspec.field(default=15, name="transactionCheckMax")
    transaction_check_interval_ms: _Positive = msgspec.field(
        default=30_000, name="transactionCheckInterval"
    )
    transaction_op_size_max: _BodySize = msgspec.field(
        default=4_096, name="transactionOpMsgMaxSize"
    )
    check_message_type: bool = msgspec.field(default=False, name="enableTopicMessageTypeCheck")
    mixed_message_type: bool = msgspec.field(default=False, name="enableMixedMessageType")
    store_reply_message: bool = msgspec.field(default=True, name="storeReplyMessageEnable")
    timer_wheel: bool = msgspec.field(default=True, name="timerWheelEnable")
    timer_seconds_max: _Positive = msgspec.field(default=3 * 24 * 3600, name="timerMaxDelaySec")
    timer_slot_ms: _Positive = msgspec.field(default=1_000, name="timerPrecisionMs")
    timer_roll_slots: I32 = msgspec.field(default=2 * 24 * 3600, name="timerRollWindowSlot")
    timer_file_size: _Positive = msgspec.field(
        default=100 * 1024 * 1024, name="mappedFileSizeTimerLog"
    )
    timer_interval_ms: _Positive = msgspec.field(default=1_000, name="timerFlushIntervalMs")
    pop_retry_v2: bool = msgspec.field(default=False, name="enableRetryTopicV2")
    pops_retry_v1: bool = msgspec.field(default=True, name="retrieveMessageFromPopRetryTopicV1")
    recall_with_topic: bool = msgspec.field(default=False, name="appendTopicForTimerDeleteKey")
    audit_file_size: _AuditSize = msgspec.field(default=AUDIT_FILE_SIZE, name="auditFileSize")
    audit_file_count: _AuditCount = msgspec.field(default=AUDIT_FILE_COUNT, name="auditFileCount")
    recall_messages: bool = msgspec.field(default=False, name="recallMessageEnable")
    lock_lifetime_ms: _Positive = msgspec.field(
        default=60_000, name="rocketmq.broker.rebalance.lockMaxLiveTime"
    )

    authenticates: bool = msgspec.field(default=False, name="authenticationEnabled")
    authorizes: bool = msgspec.field(default=False, name="authorizationEnabled")
    authentication_whitelist: str = msgspec.field(default="", name="authenticationWhitelist")
    authorization_whitelist: str = msgspec.field(default="", name="authorizationWhitelist")
    first_user: SecretText = msgspec.field(default=SecretText(), name="initAuthenticationUser")
    inner_client: SecretText = msgspec.field(
        default=SecretText(), name="innerClientAuthenticationCredentials"
    )
    connections_max: _Count = msgspec.field(default=CONNECTIONS_MAX, name="maxConnections")
    connections_of_address_max: _Count = msgspec.field(
        default=CONNECTIONS_OF_ADDRESS_MAX, name="maxConnectionsOfAddress"
    )
    new_connections_max: _Rate = msgspec.field(
        default=NEW_CONNECTIONS_OF_ADDRESS_MAX, name="maxNewConnectionsPerSecondOfAddress"
    )
    topic_messages_max: _Rate = msgspec.field(default=0, name="maxMessagesPerSecondOfTopic")
    topic_bytes_max: _Rate = msgspec.field(default=0, name="maxBytesPerSecondOfTopic")
    topic_quotas: str = msgspec.field(default="", name="quotasOfTopics")
    group_messages_max: _Rate = msgspec.field(default=0, name="maxMessagesPerSecondOfGroup")
    group_bytes_max: _Rate = msgspec.field(default=0, name="maxBytesPerSecondOfGroup")
    group_quotas: str = msgspec.field(default="", name="quotasOfGroups")
    user_messages_max: _Rate = msgspec.field(default=0, name="maxMessagesPerSecondOfUser")
    user_bytes_max: _Rate = msgspec.field(default=0, name="maxBytesPerSecondOfUser")
    user_quotas: str = msgspec.field(default="", name="quotasOfUsers")
    waiting_pulls_of_connection_max: _Count = msgspec.field(
        default=WAITING_PULLS_OF_CONNECTION_MAX, name="maxWaitingPullsOfConnection"
    )
    waiting_pulls_size_of_connection_max: _Positive = msgspec.field(
        default=WAITING_PULLS_SIZE_OF_CONNECTION_MAX, name="maxWaitingPullBytesOfConnection"
    )
    waiting_pulls_size_max: _Positive = msgspec.field(
        default=WAITING_PULLS_SIZE_MAX, name="maxWaitingPullBytes"
    )
    timed_messages_max: _Positive = msgspec.field(
        default=TIMED_MESSAGES_MAX, name="maxTimedMessages"
    )
    topics_max: _Count = msgspec.field(default=TOPICS_MAX, name="maxTopics")
    topics_of_user_max: _Count = msgspec.field(default=CREATED_BY_USER_MAX, name="maxTopicsOfUser")
    groups_max: _Count = msgspec.field(default=GROUPS_MAX, name="maxGroups")
    groups_of_user_max: _Count = msgspec.field(default=CREATED_BY_USER_MAX, name="maxGroupsOfUser")
    received_size_max: _HeldSize = msgspec.field(default=RECEIVED_SIZE_MAX, name="maxReceivedBytes")
    unsent_size_max: _HeldSize = msgspec.field(default=UNSENT_SIZE_MAX, name="maxUnsentBytes")

    @property
    def access(self) -> AccessSettings:
        """The settings of access control.

        Raises:
            ConfigurationError: one of them cannot be read, or would leave a door open.
        """
        return access_settings(
            cluster=self.broker_cluster_name,
            authenticates=self.authenticates,
            authorizes=self.authorizes,
            authentication_whitelist=self.authentication_whitelist,
            authorization_whitelist=self.authorization_whitelist,
            first_user=self.first_user,
            inner_client=self.inner_client,
        )

    @property
    def is_slave(self) -> bool:
        """Whether this broker follows a master, and takes no messages from clients."""
        return self.broker_role == SLAVE

    @property
    def shared_names(self) -> str:
        """The names that a master and its slaves share, for a line of the log."""
        return f"brokerName={self.broker_name}, brokerClusterName={self.broker_cluster_name}"

    @property
    def slaves_needed(self) -> int:
        """The slaves that must have a message before it is acknowledged; 0: none."""
        return self.in_sync_replicas - 1 if self.broker_role == SYNC_MASTER else 0

    @property
    def waits_for_slaves(self) -> bool:
        """Whether replies wait for slaves: under a controller for all that it may elect."""
        return self.slaves_needed > 0 or (self.is_controlled and not self.is_slave)

    @property
    def copies_early(self) -> bool:
        """Whether what is written goes to the other side of the pair before it is synced here.

        An asynchronous master may not: after a loss of power its slaves would have more than it.
        """
        if self.is_slave:
            return self.slave_flush == RECEIVED
        return self.waits_for_slaves

    @property
    def slave_networks(self) -> tuple[Network, ...] | None:
        """Where slaves may be; None: anywhere.

        Slaves have no accounts. With access control they must be on this machine, or where
        `haAllowedAddresses` says, or have a certificate with a name of `haAllowedNames`.

        Raises:
            ConfigurationError: when that is no list of networks.
        """
        if not self.ha_sources and (self.ha_names or not self.authenticates):
            return None
        try:
            return parse_networks(self.ha_sources or "127.0.0.0/8,::1")
        except ValueError as error:
            raise ConfigurationError(f"haAllowedAddresses: {error}") from error

    @property
    def ha_address(self) -> str:
        """The address for slaves, "host:port"; Apache's brokers announce one in any case."""
        port = self.ha_port if self.ha_port > 0 else self.listen_port + 1
        return address_of(self.broker_ip, port)

    @property
    def address(self) -> str:
        """The address of this broker for clients, "host:port"."""
        return address_of(self.broker_ip, self.listen_port)

    @property
    def message_properties(self) -> dict[str, str]:
        """What this broker writes into each message that it takes from a producer."""
        return {
            MSG_REGION: self.region_id,
            TRACE_ON: "true" if self.trace_on else "false",
            CLUSTER: self.broker_cluster_name,
        }

    @property
    def timer_precision_ms(self) -> int:
        """Duration of a timer-wheel slot: the longest supported one up to the configured value.

        Source: Apache RocketMQ `MessageStoreConfig`.
        """
        fitting = [slot for slot in _TIMER_SLOTS_MS if slot <= self.timer_slot_ms]
        return max(fitting, default=_TIMER_SLOTS_MS[0])

    @property
    def timer_roll_window(self) -> int:
        """Slots after which a timed message is stored again; if out of range, the maximum.

        Source: Apache RocketMQ `TimerMessageStore`.
        """
        return self.timer_roll_slots if 2 <= self.timer_roll_slots <= _ROLL_MAX else _ROLL_MAX

    @property
    def retention(self) -> RetentionRules:
        """The rules for removing log files; two ratios are clamped to Apache's bounds."""
        return RetentionRules(
            hours=parse_hours(self.delete_when),
            reserved_ms=hours_ms(self.reserved_hours),
            used_max=self.used_percent_max / 100,
            forcibly=_within(self.forcibly_percent, *REMOVES_FILES_PERCENT) / 100,
            warning=_within(self.warning_percent, *REFUSES_SENDS_PERCENT) / 100,
            may_force=self.cleans_forcibly,
            batch_max=self.delete_batch_max,
        )

    @property
    def pressure_limits(self) -> PressureLimits:
        """When sends are refused because earlier ones wait."""
        return PressureLimits(self.send_wait_ms, self.stuck_ms, self.sends_waiting_max)

    @property
    def pull_limits(self) -> PullLimits:
        """The limits of waiting pulls."""
        return PullLimits(
            self.waiting_pulls_of_connection_max,
            self.waiting_pulls_size_of_connection_max,
            self.waiting_pulls_size_max,
        )

    @property
    def delays_ms(self) -> dict[int, int]:
        """The delay of each level, from level 1."""
        return parse_delay_levels(self.delay_levels)


def has_access_control(config: BrokerConfig) -> bool:
    """Whether a client must prove who it is, and may do only what was granted to it."""
    return config.authenticates and config.authorizes


def _within(percent: int, least: int, most: int) -> int:
    return min(max(percent, least), most)
