"""The log events of the client, its consumers, and the connections below them."""

from reliable_mq.telemetry.log_event import critical, debug, error, info, warning

BACKGROUND_WORK_FAILED = warning("background_work_failed", "%(work)s failed: %(error)s")
BACKGROUND_WORK_BROKEN = error("background_work_broken", "%(work)s failed")
REQUEST_UNSUPPORTED = debug(
    "request_unsupported",
    "%(peer)s sent request %(code)d, which this client does not support",
)
ROUTE_NOT_REFRESHED = info(
    "route_not_refreshed", "the route of topic %(topic)s was not refreshed: %(error)s"
)
REQUEST_UNUSABLE = error(
    "request_unusable", "%(peer)s sent a request %(code)d that cannot be handled"
)
HEARTBEAT_MISSED = info("heartbeat_missed", "a heartbeat did not reach %(peer)s: %(error)s")
HEARTBEAT_REFUSED = warning(
    "heartbeat_refused", "%(peer)s refused a heartbeat: %(code)d %(remark)s"
)
BROKER_LIST_MISSING = info(
    "broker_list_missing", "the name servers did not return the list of brokers: %(error)s"
)
RESET_UNREADABLE = warning(
    "reset_unreadable", "%(peer)s sent a reset of offsets that cannot be decoded: %(error)s"
)
HANDLED_ON_REQUEST = info(
    "handled_on_request",
    "group %(group)s: message %(message_id)s (key %(key)s) of topic %(topic)s was "
    "handled because %(peer)s asked for it: %(outcome)s",
)
HANDLERS_CUT_OFF = warning(
    "handlers_cut_off",
    "group %(group)s: %(calls)d handler calls did not end within %(seconds)g s; their "
    "messages are delivered again%(rest)s",
)
DELIVERY_BROKEN = error("delivery_broken", "group %(group)s: a delivery failed with a bug")
HANDLER_ENDED_LATE = warning(
    "handler_ended_late",
    "group %(group)s: a handler call ended after %(seconds).0f s: message "
    "%(message_ids)s (key %(keys)s) of topic %(topic)s; %(released)d of its messages had "
    "been handed out again, and its outcomes do not count for these",
)
HANDLERS_ALL_HANG = error(
    "handlers_all_hang", "group %(group)s: all its handlers hang, no call can start"
)
HANDLER_OVERDUE = warning(
    "handler_overdue",
    "group %(group)s: a handler call takes longer than %(limit_seconds)g s, it began "
    "%(seconds).0f s ago: message %(message_ids)s (key %(keys)s) of topic "
    "%(topic)s%(consequence)s",
)
HANDLERS_IGNORE_CANCEL = warning(
    "handlers_ignore_cancel",
    "group %(group)s: %(calls)d handler calls ignored their cancellation and still run; "
    "their outcomes do not count",
)
HANDLER_CANCELLED = warning(
    "handler_cancelled",
    "group %(group)s: message %(message_ids)s (key %(keys)s) of topic %(topic)s: %(reason)s",
)
HANDLER_FAILED = error(
    "handler_failed",
    "group %(group)s: the handler failed with message %(message_ids)s (key %(keys)s) of "
    "topic %(topic)s: %(error)s",
)
MESSAGE_NOT_SETTLED = error(
    "message_not_settled",
    "group %(group)s: message %(message_id)s (key %(key)s) of topic %(topic)s was not settled",
)
QUEUE_CALLBACK_SLOW = warning(
    "queue_callback_slow",
    "group %(group)s: the application's callback for queues takes longer than "
    "%(seconds)g s; the consumer continues without it",
)
QUEUE_CALLBACK_FAILED = error(
    "queue_callback_failed", "group %(group)s: the application's callback for queues failed"
)
QUEUE_READING_BROKEN = error(
    "queue_reading_broken", "group %(group)s: reading a queue failed with a bug"
)
TOPIC_NOT_THERE = info(
    "topic_not_there", "group %(group)s: topic %(topic)s has no route yet: %(error)s"
)
TOPIC_THERE = info("topic_there", "group %(group)s: topic %(topic)s is there and is read")
QUEUE_MOVES_LATE = warning(
    "queue_moves_late",
    "group %(group)s: queue %(queue_id)d of topic %(topic)s at %(broker)s moves to "
    "another member, but %(messages)d of its messages are still being handled after "
    "%(seconds)g s: %(consequence)s",
)
RECEIVED_NOT_SETTLED = error(
    "received_not_settled",
    "group %(group)s: message %(message_id)s (key %(key)s) of topic %(topic)s was "
    "received and not settled",
)
CONSUMER_OBSTACLE = warning("consumer_obstacle", "group %(group)s: %(problem)s")
CONSUMER_UNOBSTRUCTED = info("consumer_unobstructed", "group %(group)s reads all its topics again")
TOPIC_UNKNOWN = warning(
    "topic_unknown",
    "group %(group)s: no name server knows topic %(topic)s after %(seconds)g s; is its name right?",
)
TOPIC_AWAITED = info(
    "topic_awaited",
    "group %(group)s: topic %(topic)s does not exist after %(seconds)g s: nobody has sent to it",
)
MEMBER_IDLE = info(
    "member_idle",
    "group %(group)s: %(members)d members share %(queues)d queues of topic %(topic)s, so this one "
    "gets no message of it: %(advice)s",
)
OFFSETS_NOT_KEPT = error("offsets_not_kept", "group %(group)s: offsets were not kept: %(error)s")
OFFSET_CHANGED = warning(
    "offset_changed",
    "group %(group)s: queue %(queue_id)d of topic %(topic)s at %(broker)s continues at "
    "%(offset)d, set by its broker, not at %(expected)d: the group was reset, or the "
    "offset does not exist",
)
PULL_UNANSWERED = debug(
    "pull_unanswered",
    "group %(group)s: a pull of queue %(queue_id)d of topic %(topic)s at %(broker)s got "
    "no answer: %(error)s",
)
PULL_FAILED = warning(
    "pull_failed",
    "group %(group)s: a pull of queue %(queue_id)d of topic %(topic)s at %(broker)s "
    "failed: %(error)s",
)
PULLS_WORK = info(
    "pulls_work",
    "group %(group)s: topic %(topic)s is read again after %(seconds).0f s",
)
ACKNOWLEDGEMENT_LOST = warning(
    "acknowledgement_lost",
    "group %(group)s: %(messages)d handled messages were not acknowledged, so they may be "
    "delivered again: message %(message_ids)s (key %(keys)s) of topic %(topic)s: %(error)s",
)
POP_LEASE_LOST = warning(
    "pop_lease_lost",
    "group %(group)s: message %(message_id)s (key %(key)s) of topic %(topic)s is still being "
    "handled, but its broker did not extend its lease, so it is delivered again: %(error)s. A "
    "longer invisible_seconds (@mq.consumer: lease) outlasts such an outage",
)
DEAD_LETTER = warning(
    "dead_letter",
    "group %(group)s: message %(message_id)s (key %(key)s) of topic %(topic)s is "
    "%(end)s: %(reason)s",
)
SEND_BACK_FAILED = warning(
    "send_back_failed",
    "group %(group)s: message %(message_id)s (key %(key)s) of topic %(topic)s was not "
    "sent back: %(error)s",
)
SEND_BACK_REFUSED = warning(
    "send_back_refused",
    "group %(group)s: the broker did not take back message %(message_id)s (key %(key)s) "
    "of topic %(topic)s: %(error)s",
)
DEAD_LETTER_NOT_STORED = warning(
    "dead_letter_not_stored",
    "group %(group)s: message %(message_id)s (key %(key)s) of topic %(topic)s was not "
    "stored as a dead letter, the client will retry: %(error)s",
)
MIDDLEWARE_MESSAGE_INVALID = error(
    "middleware_message_invalid",
    "a middleware made message %(message_id)s (key %(key)s) of topic %(topic)s invalid; "
    "the original is sent: %(fault)s",
)
MIDDLEWARE_FAILED = error("middleware_failed", "%(hook)s of %(middleware)s failed%(again)s")
MIDDLEWARE_COUNT_CHANGED = error(
    "middleware_count_changed",
    "a middleware removed or added messages: the original messages are sent",
)
LAG_NOT_NOTED = error(
    "lag_not_noted", "the lag of group %(group)s in topic %(topic)s was not noted"
)
TRACE_LOST = warning(
    "trace_lost", "message traces were not sent, %(lost)d are lost so far: %(error)s"
)
BATCH_REFUSED_MESSAGE = error(
    "batch_refused_message",
    "message %(message_id)s (key %(key)s) of topic %(topic)s cannot be put into a batch",
)
BATCH_FAILED = error("batch_failed", "a batch for topic %(topic)s failed")
BATCH_WITHOUT_ROUTE = error("batch_without_route", "cannot find the route of topic %(topic)s")
REPLY_TOO_LATE = info("reply_too_late", "%(peer)s pushed a reply to a request that has timed out")
REPLY_UNREADABLE = warning(
    "reply_unreadable", "%(peer)s pushed a reply that cannot be decoded: %(error)s"
)
CHECK_BACK_NOT_JOINED = warning(
    "check_back_not_joined",
    "%(peer)s sent a check-back of half message %(message_id)s for group %(group)s, "
    "which is not joined here",
)
CHECK_BACK_UNREADABLE = warning(
    "check_back_unreadable", "%(peer)s sent a check-back that cannot be decoded: %(error)s"
)
SECOND_CONNECTION_FAILED = debug(
    "second_connection_failed", "no second connection to %(peer)s: %(error)s"
)
COMMAND_INVALID = warning(
    "command_invalid",
    "%(peer)s sent an invalid command, the connection is closed: %(error)s",
)
TASKS_LEFT = warning(
    "tasks_left",
    "%(tasks)d tasks do not end after their cancellation; the loop ends without them",
)
LOOP_ENDED = critical("loop_ended", "the event loop has ended: nothing is served any more")
TRACE_CONTEXT_NOT_ADDED = warning(
    "trace_context_not_added", "a trace context could not be added to a message"
)
TRACE_CONTEXT_UNREADABLE = warning(
    "trace_context_unreadable", "a trace context of topic %(topic)s cannot be read"
)
PEER_LOST = warning("peer_lost", "%(peer)s is lost: %(error)s")
PEER_NOT_REACHED = warning("peer_not_reached", "%(peer)s cannot be reached yet: %(error)s")
PEER_BACK = info("peer_back", "%(peer)s answers, after %(seconds).0f s in which it did not answer")
SENT = info(
    "sent",
    "%(result)s: message %(message_id)s (key %(key)s) to topic %(topic)s%(detail)s",
    "producer_group",
    "seconds",
    "outcome",
    "tag",
    "keys",
    "ordering_key",
    "broker",
    "queue_id",
    "queue_offset",
    "error",
)
CONSUMED = info(
    "consumed",
    "%(outcome)s: message %(message_id)s (key %(key)s) of topic %(topic)s by group "
    "%(consumer_group)s%(detail)s",
    "seconds",
    "attempt",
    "tag",
    "keys",
    "ordering_key",
    "broker",
    "queue_id",
    "queue_offset",
    "error",
)
RECEIVED = info(
    "received",
    "received: message %(message_id)s (key %(key)s) of topic %(topic)s by group "
    "%(consumer_group)s%(detail)s",
    "seconds",
    "outcome",
    "attempt",
    "tag",
    "keys",
    "ordering_key",
    "broker",
    "queue_id",
    "queue_offset",
    "error",
)
HALF_ENDED = info(
    "half_ended",
    "%(outcome)s of half message %(message_id)s of topic %(topic)s%(detail)s",
    "producer_group",
    "error",
)
