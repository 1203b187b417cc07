"""Every bound of the protocol and the store, and the relations between them.

Sources: Apache RocketMQ's `NettyDecoder`, `MessageStoreConfig`, `Validators` and `TopicValidator`.
Sizes are bytes unless the name says otherwise.
"""

from reliable_mq.errors import InvariantBroken

FRAME_SIZE_MAX = 16 * 1024 * 1024  # the length field included
MESSAGE_BODY_SIZE_MAX = 4 * 1024 * 1024
RECORD_SIZE_MAX = MESSAGE_BODY_SIZE_MAX + 64 * 1024
PROPERTIES_SIZE_MAX = 32_767
TOPIC_LENGTH_MAX = 127
RETRY_TOPIC_LENGTH_MAX = 255
GROUP_LENGTH_MAX = 120
PORT_MAX = 65_535
# Of one topic. Apache allows any number. A request for the numbers of such a topic would stop the
# broker.
QUEUES_MAX = 65_535

# A broker's thresholds for its disk in percent: the lowest, and the highest, which is the default.
# Source: Apache RocketMQ `DefaultMessageStore.CleanCommitLogService`.
REFUSES_SENDS_PERCENT = 35, 90
REMOVES_FILES_PERCENT = 30, 85

COMMIT_LOG_SEGMENT_SIZE = 1024 * 1024 * 1024
CONSUME_QUEUE_UNIT_SIZE = 20
CONSUME_QUEUE_FILE_SIZE = 300_000 * CONSUME_QUEUE_UNIT_SIZE

# Connections of a broker or a name server. One address may have half of all, so as many are left
# to the others.
CONNECTIONS_MAX = 20_000
CONNECTIONS_OF_ADDRESS_MAX = 10_000
NEW_CONNECTIONS_OF_ADDRESS_MAX = 100  # a second
# Bytes that all connections together may hold. Above, those that hold most are closed.
RECEIVED_SIZE_MAX = 256 * 1024 * 1024  # incomplete frames and waiting requests
UNSENT_SIZE_MAX = 256 * 1024 * 1024  # unread answers

# The most that one subscription or heartbeat may have: reading more would delay everybody.
TAGS_MAX = 1_000
REGISTERED_TOPICS_MAX = 300_000  # at a name server: topics, each counted once for a broker name
REGISTERED_NAME_LENGTH_MAX = 390  # the longest: %RETRY%, a group of 255, "_", a topic (pop retries)
AUDIT_FILE_SIZE = 10 * 1024 * 1024
AUDIT_FILE_COUNT = 10  # full files that are kept
BROKERS_MAX = 1_000  # at a name server
BROKERS_OF_CONNECTION_MAX = 100  # that one connection registers there
BROKER_TEXT_LENGTH_MAX = 255  # characters of its name, its cluster's, each of its addresses
BROKER_LIFETIME_MS_MAX = 3_600_000  # how long a silent broker may ask to be kept
REGISTRATION_SIZE_MAX = 32 * 1024 * 1024  # unpacked
SMALL_REGISTRATION_SIZE_MAX = 320 * 1024  # such ones take turns with one larger one
REGISTRATIONS_SIZE_MAX = 64 * 1024 * 1024  # of all that wait at a name server, as received
# The settings that a name server keeps for tools and brokers: characters, plus a fixed cost for
# each value and each namespace.
SETTINGS_SIZE_MAX = 4 * 1024 * 1024
SETTING_COST = 128
NAMESPACE_COST = 512
SUBSCRIPTIONS_MAX = 10_000
REQUEST_BODY_SIZE_MAX = 4 * 1024 * 1024  # except of sends and registrations
SLOW_TEXT_SIZE_MAX = 256 * 1024  # of properties, and of JSON that only fastjson reads
FIELDS_MAX = 10_000  # in the header of a command
SHORT_HEADER_SIZE = 64 * 1024  # bytes; a JSON header up to this size has no more fields than that
ROWS_MAX = 10_000  # of topics or groups in one request that creates them
TOPICS_MAX = 300_000  # at a broker, by default; as many as our name server takes
GROUPS_MAX = 100_000
CREATED_BY_USER_MAX = 10_000  # topics, and as many groups
TABLE_SIZE_MAX = 64 * 1024 * 1024  # characters of a broker's table of topics, or of its groups
# Offsets that a broker keeps: each counts 1, and each pair of a topic and a group counts more
# (TOPIC_OFFSETS_COST). That bounds memory, about 90 bytes for each, and the time to write them.
OFFSETS_SIZE_MAX = 4_000_000  # committed ones
PULLED_SIZE_MAX = 1_000_000  # offsets of pulls by groups; not saved
TOPIC_OFFSETS_COST = 8
OFFSETS_ASKED_MAX = 100_000  # the most offsets that one request clones, compares or encodes
COUNTERS_MAX = 100_000  # of the activity of topics, groups and queues; about 1 KB of memory each
WAITING_PULLS_OF_CONNECTION_MAX = 10_000
WAITING_PULLS_SIZE_OF_CONNECTION_MAX = 32 * 1024 * 1024  # of memory
WAITING_PULLS_SIZE_MAX = 256 * 1024 * 1024  # of memory, of all connections together
TIMED_MESSAGES_MAX = 100_000_000  # that wait for their time; they are on the disk
LOCKS_MAX = 100_000  # of queues, for all groups at a broker
NAME_LENGTH_MAX = 255  # characters of a name in a request, if no other limit is shorter
QUOTAS_TEXT_MAX = 64 * 1024  # characters of the quotas of topics, or of groups, that have their own
RULES_MAX = 5_000  # modes of groups and topics at a broker, and topics forbidden to groups
ATTRIBUTES_LENGTH_MAX = 64 * 1024  # characters of a change of one topic's or group's attributes
FILTER_LENGTH_MAX = 64 * 1024  # characters of an expression
FILTER_PARTS_MAX = 2_000  # names, constants, signs and words of an SQL92 expression
FILTER_SEARCHES_MAX = 32  # CONTAINS in it: each may look at 32 KB for half a millisecond

QUERY_SIZE_MAX = MESSAGE_BODY_SIZE_MAX  # of all records that a query by key returns, but the first
PULL_COUNT_MAX = 32
PULL_SIZE_MAX = 256 * 1024

DELAY_LEVELS_TEXT = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
DELAY_LEVEL_SECONDS = tuple(  # of delay level 1, 2, … 18
    float(int(text[:-1]) * {"s": 1, "m": 60, "h": 3600}[text[-1]])
    for text in DELAY_LEVELS_TEXT.split()
)
TIMER_SECONDS_MAX = 3 * 86_400  # Apache's `timerMaxDelaySec`: how far ahead a timer looks
RETRY_ATTEMPTS_MAX = 16
# How long a popped message is invisible to others. Source: Apache RocketMQ `ProxyConfig`.
INVISIBLE_SECONDS_MIN = 1.0
INVISIBLE_SECONDS_MAX = 12 * 3600.0

_RECORD_FIXED_SIZE_MAX = 116  # 91 bytes, and what a v2 record and two IPv6 hosts add

if not MESSAGE_BODY_SIZE_MAX < RECORD_SIZE_MAX < FRAME_SIZE_MAX < COMMIT_LOG_SEGMENT_SIZE:
    raise InvariantBroken("a body fits a record, a record a frame, a frame a segment")
if (
    MESSAGE_BODY_SIZE_MAX + PROPERTIES_SIZE_MAX + RETRY_TOPIC_LENGTH_MAX + _RECORD_FIXED_SIZE_MAX
    > RECORD_SIZE_MAX
):
    raise InvariantBroken("a message within every limit fits a record")
if PULL_SIZE_MAX + RECORD_SIZE_MAX >= FRAME_SIZE_MAX:
    raise InvariantBroken("the largest pull and a record on top of it fit a frame")
if GROUP_LENGTH_MAX + len("%RETRY%") > TOPIC_LENGTH_MAX:
    raise InvariantBroken("the retry topic of every group is a topic")
