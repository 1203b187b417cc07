"""The messages of `apache.rocketmq.v2`: their fields, types and numbers. Values only.

A line of `MESSAGES` is one message: its name, then a field after another as `name type number`.
Before a type, `*` stands for repeated and `?` for optional. `choice/type` is a field of the oneof
`choice`. Numbers and names are those of the service definition that all clients are made from.
Source: apache/rocketmq-apis `apache/rocketmq/v2/service.proto`, `definition.proto`.
"""

from reliable_mq.gateway.codes import Code

PACKAGE = "apache.rocketmq.v2"
SERVICE = f"{PACKAGE}.MessagingService"

ENUMS: dict[str, dict[str, int]] = {
    "TransactionResolution": {"TRANSACTION_RESOLUTION_UNSPECIFIED": 0, "COMMIT": 1, "ROLLBACK": 2},
    "TransactionSource": {"SOURCE_UNSPECIFIED": 0, "SOURCE_CLIENT": 1, "SOURCE_SERVER_CHECK": 2},
    "Permission": {
        "PERMISSION_UNSPECIFIED": 0,
        "NONE": 1,
        "READ": 2,
        "WRITE": 3,
        "READ_WRITE": 4,
    },
    "FilterType": {"FILTER_TYPE_UNSPECIFIED": 0, "TAG": 1, "SQL": 2},
    "AddressScheme": {"ADDRESS_SCHEME_UNSPECIFIED": 0, "IPv4": 1, "IPv6": 2, "DOMAIN_NAME": 3},
    "MessageType": {
        "MESSAGE_TYPE_UNSPECIFIED": 0,
        "NORMAL": 1,
        "FIFO": 2,
        "DELAY": 3,
        "TRANSACTION": 4,
        "LITE": 5,
        "PRIORITY": 6,
    },
    "DigestType": {"DIGEST_TYPE_UNSPECIFIED": 0, "CRC32": 1, "MD5": 2, "SHA1": 3},
    "ClientType": {
        "CLIENT_TYPE_UNSPECIFIED": 0,
        "PRODUCER": 1,
        "PUSH_CONSUMER": 2,
        "SIMPLE_CONSUMER": 3,
        "PULL_CONSUMER": 4,
        "LITE_PUSH_CONSUMER": 5,
        "LITE_SIMPLE_CONSUMER": 6,
    },
    "Encoding": {"ENCODING_UNSPECIFIED": 0, "IDENTITY": 1, "GZIP": 2},
    "Code": {each.name: each.value for each in Code},
    "Language": {
        "LANGUAGE_UNSPECIFIED": 0,
        "JAVA": 1,
        "CPP": 2,
        "DOT_NET": 3,
        "GOLANG": 4,
        "RUST": 5,
        "PYTHON": 6,
        "PHP": 7,
        "NODE_JS": 8,
        "RUBY": 9,
        "OBJECTIVE_C": 10,
        "DART": 11,
        "KOTLIN": 12,
    },
    "QueryOffsetPolicy": {"BEGINNING": 0, "END": 1, "TIMESTAMP": 2},
    "LiteSubscriptionAction": {
        "PARTIAL_ADD": 0,
        "PARTIAL_REMOVE": 1,
        "COMPLETE_ADD": 2,
        "COMPLETE_REMOVE": 3,
    },
}

MESSAGES = """
FilterExpression: type FilterType 1, expression string 2
RetryPolicy: max_attempts int32 1, exponential_backoff strategy/ExponentialBackoff 2,
  customized_backoff strategy/CustomizedBackoff 3
ExponentialBackoff: initial Duration 1, max Duration 2, multiplier float 3
CustomizedBackoff: next *Duration 1
Resource: resource_namespace string 1, name string 2
SubscriptionEntry: topic Resource 1, expression FilterExpression 2
Address: host string 1, port int32 2
Endpoints: scheme AddressScheme 1, addresses *Address 2
Broker: name string 1, id int32 2, endpoints Endpoints 3
MessageQueue: topic Resource 1, id int32 2, permission Permission 3, broker Broker 4,
  accept_message_types *MessageType 5
Digest: type DigestType 1, checksum string 2
SystemProperties: tag ?string 1, keys *string 2, message_id string 3, body_digest Digest 4,
  body_encoding Encoding 5, message_type MessageType 6, born_timestamp Timestamp 7,
  born_host string 8, store_timestamp ?Timestamp 9, store_host string 10,
  delivery_timestamp ?Timestamp 11, receipt_handle ?string 12, queue_id int32 13,
  queue_offset ?int64 14, invisible_duration ?Duration 15, delivery_attempt ?int32 16,
  message_group ?string 17, trace_context ?string 18,
  orphaned_transaction_recovery_duration ?Duration 19, dead_letter_queue ?DeadLetterQueue 20,
  lite_topic ?string 21, priority ?int32 22
DeadLetterQueue: topic string 1, message_id string 2
Message: topic Resource 1, user_properties map 2, system_properties SystemProperties 3, body bytes 4
Assignment: message_queue MessageQueue 1
Status: code Code 1, message string 2
UA: language Language 1, version string 2, platform string 3, hostname string 4
Settings: client_type ?ClientType 1, access_point ?Endpoints 2, backoff_policy ?RetryPolicy 3,
  request_timeout ?Duration 4, publishing pub_sub/Publishing 5,
  subscription pub_sub/Subscription 6, user_agent UA 7, metric Metric 8, client_properties map 9
Publishing: topics *Resource 1, max_body_size int32 2, validate_message_type bool 3
Subscription: group ?Resource 1, subscriptions *SubscriptionEntry 2, fifo ?bool 3,
  receive_batch_size ?int32 4, long_polling_timeout ?Duration 5,
  lite_subscription_quota ?int32 6, max_lite_topic_size ?int32 7
Metric: on bool 1, endpoints ?Endpoints 2
QueryRouteRequest: topic Resource 1, endpoints Endpoints 2
QueryRouteResponse: status Status 1, message_queues *MessageQueue 2
SendMessageRequest: messages *Message 1
SendResultEntry: status Status 1, message_id string 2, transaction_id string 3, offset int64 4,
  recall_handle string 5
SendMessageResponse: status Status 1, entries *SendResultEntry 2
QueryAssignmentRequest: topic Resource 1, group Resource 2, endpoints Endpoints 3
QueryAssignmentResponse: status Status 1, assignments *Assignment 2
ReceiveMessageRequest: group Resource 1, message_queue MessageQueue 2,
  filter_expression FilterExpression 3, batch_size int32 4, invisible_duration ?Duration 5,
  auto_renew bool 6, long_polling_timeout ?Duration 7, attempt_id ?string 8
ReceiveMessageResponse: status content/Status 1, message content/Message 2,
  delivery_timestamp content/Timestamp 3
AckMessageEntry: message_id string 1, receipt_handle string 2, lite_topic ?string 3
AckMessageRequest: group Resource 1, topic Resource 2, entries *AckMessageEntry 3
AckMessageResultEntry: message_id string 1, receipt_handle string 2, status Status 3
AckMessageResponse: status Status 1, entries *AckMessageResultEntry 2
ForwardMessageToDeadLetterQueueRequest: group Resource 1, topic Resource 2,
  receipt_handle string 3, message_id string 4, delivery_attempt int32 5,
  max_delivery_attempts int32 6, lite_topic ?string 7
ForwardMessageToDeadLetterQueueResponse: status Status 1
HeartbeatRequest: group ?Resource 1, client_type ClientType 2
HeartbeatResponse: status Status 1
EndTransactionRequest: topic Resource 1, message_id string 2, transaction_id string 3,
  resolution TransactionResolution 4, source TransactionSource 5, trace_context string 6
EndTransactionResponse: status Status 1
PrintThreadStackTraceCommand: nonce string 1
ReconnectEndpointsCommand: nonce string 1
ThreadStackTrace: nonce string 1, thread_stack_trace ?string 2
VerifyMessageCommand: nonce string 1, message Message 2
VerifyMessageResult: nonce string 1
RecoverOrphanedTransactionCommand: message Message 1, transaction_id string 2
NotifyUnsubscribeLiteCommand: lite_topic string 1
TelemetryCommand: status ?Status 1, settings command/Settings 2,
  thread_stack_trace command/ThreadStackTrace 3,
  verify_message_result command/VerifyMessageResult 4,
  recover_orphaned_transaction_command command/RecoverOrphanedTransactionCommand 5,
  print_thread_stack_trace_command command/PrintThreadStackTraceCommand 6,
  verify_message_command command/VerifyMessageCommand 7,
  reconnect_endpoints_command command/ReconnectEndpointsCommand 8,
  notify_unsubscribe_lite_command command/NotifyUnsubscribeLiteCommand 9
NotifyClientTerminationRequest: group ?Resource 1
NotifyClientTerminationResponse: status Status 1
ChangeInvisibleDurationRequest: group Resource 1, topic Resource 2, receipt_handle string 3,
  invisible_duration Duration 4, message_id string 5, lite_topic ?string 6, suspend ?bool 7
ChangeInvisibleDurationResponse: status Status 1, receipt_handle string 2
PullMessageRequest: group Resource 1, message_queue MessageQueue 2, offset int64 3,
  batch_size int32 4, filter_expression FilterExpression 5, long_polling_timeout Duration 6
PullMessageResponse: status content/Status 1, message content/Message 2,
  next_offset content/int64 3
UpdateOffsetRequest: group Resource 1, message_queue MessageQueue 2, offset int64 3
UpdateOffsetResponse: status Status 1
GetOffsetRequest: group Resource 1, message_queue MessageQueue 2
GetOffsetResponse: status Status 1, offset int64 2
QueryOffsetRequest: message_queue MessageQueue 1, query_offset_policy QueryOffsetPolicy 2,
  timestamp ?Timestamp 3
QueryOffsetResponse: status Status 1, offset int64 2
RecallMessageRequest: topic Resource 1, recall_handle string 2
RecallMessageResponse: status Status 1, message_id string 2
SyncLiteSubscriptionRequest: action LiteSubscriptionAction 1, topic Resource 2, group Resource 3,
  lite_topic_set *string 4, version ?int64 5
SyncLiteSubscriptionResponse: status Status 1
"""

CALLS = (
    *("QueryRoute", "Heartbeat", "SendMessage", "QueryAssignment", "ReceiveMessage", "AckMessage"),
    *("ForwardMessageToDeadLetterQueue", "PullMessage", "UpdateOffset", "GetOffset", "QueryOffset"),
    *("EndTransaction", "Telemetry", "NotifyClientTermination", "ChangeInvisibleDuration"),
    *("RecallMessage", "SyncLiteSubscription"),
)
STREAMS = frozenset({"ReceiveMessage", "PullMessage", "Telemetry"})
"""The calls that may be answered by more than one message."""
