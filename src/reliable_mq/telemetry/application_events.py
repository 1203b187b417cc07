"""The log events of applications: outbox, consume log, resend, escalation, retention, commands."""

from reliable_mq.telemetry.log_event import debug, error, info, warning

RESEND_STARTED = info(
    "resend_started", "application %(application)s: resend looks every %(interval)g s"
)
APPLICATION_READY = info(
    "application_ready", "application %(application)s is ready and consumes %(consumes)s"
)
APPLICATION_WAITS = info(
    "application_waits",
    "application %(application)s is started, and waits for a broker for %(consumes)s",
)
APPLICATION_STOPPED = info(
    "application_stopped", "application %(application)s: the %(part)s has stopped"
)
APPLICATION_NOT_STARTED = warning(
    "application_not_started",
    "application %(application)s sends but is not started: nobody consumes its messages, "
    "they stay UNCONFIRMED. Its broker is inside this process, so no other process can "
    "consume them. Write `with mq:`, or call mq.start() or mq.run()",
)
MESSAGES_UNSIGNED = warning(
    "messages_unsigned",
    "messages are not signed, and the broker %(broker)s is not on this machine: any "
    "client that can send to its topics can use a message's id for another content; set "
    "signing_keys",
)
GROUPS_UNKNOWN = warning("groups_unknown", "%(problem)s")
ALERTS_SENT = info(
    "alerts_sent",
    "%(stuck)d stubs are newly stuck; people were told by %(sent)d digests, and %(failed)d digests "
    "could not be sent",
)
RESEND_LEASE_DOUBTFUL = warning("resend_lease_doubtful", "%(problem)s")
WORKER_ENDED = warning("worker_ended", "worker %(pid)d ended with code %(code)d")
WORKER_FAILING = error(
    "worker_failing",
    "this worker failed %(times)d times in a row within %(seconds)g s of its start; it "
    "will be started again every %(again_seconds)g s: %(command)s",
)
WORKER_NOT_STARTED = error(
    "worker_not_started", "a worker cannot be started, again in %(seconds)g s: %(error)s"
)
WORKER_METRICS_LOST = warning(
    "worker_metrics_lost", "the counts of worker %(pid)d are lost, sums fall: %(error)s"
)
LEASES_NOT_RENEWED = error("leases_not_renewed", "group %(group)s: leases were not renewed")
SIGNATURE_REFUSED = error(
    "signature_refused",
    "group %(group)s: message %(message_id)s (key %(key)s) of topic %(topic)s is "
    "refused: %(reason)s",
)
DUPLICATE_SUPPRESSED = info(
    "duplicate_suppressed",
    "group %(group)s: suppressed duplicate of message %(message_id)s (key %(key)s) of "
    "topic %(topic)s; %(unsaid)d more since the last such line",
)
DELIVERY_POSTPONED = info(
    "delivery_postponed",
    "group %(group)s: postponed delivery of message %(message_id)s (key %(key)s) of "
    "topic %(topic)s: another delivery of it is being handled",
)
DUPLICATE_KEY = info(
    "duplicate_key",
    "group %(group)s: message %(message_id)s (key %(key)s) of topic %(topic)s is a "
    "duplicate of message %(first_message_id)s by its business key",
)
LOOP_BLOCKED = warning(
    "loop_blocked",
    "the event loop of this worker has not run for %(seconds).0f s: nothing is fetched, no lease "
    "is renewed; it is blocked at %(place)s; async def handlers that run: %(handlers)s; let them "
    "await, or write def",
)
CLOCK_DIFFERS = warning(
    "clock_differs",
    "the clock of this machine is %(seconds).1f s %(direction)s the database's: leases "
    "and due times use the database's clock; set the clock of this machine",
)
TABLES_NEWER = info(
    "tables_newer",
    "the tables are of a newer release (revision %(revision)s), which only adds",
)
PARTITION_MISSING = info(
    "partition_missing", "retention: no partition %(partition)s yet: %(error)s"
)
PROCESS_NOT_NOTED = debug(
    "process_not_noted", "the process did not note that it is alive: %(error)s"
)
MESSAGES_FORGOTTEN = error(
    "messages_forgotten",
    "%(messages)d message(s) were written into a transaction that was closed without "
    "commit and are lost with it; the %(kind)s was in a transaction before "
    "mq.transaction(%(kind)s) joined it, so its owner must call commit()",
)
TICK_FIRED = info(
    "tick_fired",
    "periodic message %(periodic)s: tick %(tick)s is fired, %(messages)d message(s)",
    "message_id",
)
TICKS_SKIPPED = warning(
    "ticks_skipped",
    "periodic message %(periodic)s: %(skipped)d missed tick(s) before %(tick)s are skipped",
)
TICK_FAILED = error(
    "tick_failed",
    "periodic message %(periodic)s: tick %(tick)s failed %(times)d time(s), again in "
    "%(seconds)g s: %(error)s",
)
TICKS_TURNED_BACK = warning(
    "ticks_turned_back",
    "periodic message %(periodic)s: its ticks are decided until %(decided)s, but it is %(now)s: "
    "the clock was set back. Ticks that were not fired yet are fired at their time",
)
PROBES_UNANSWERED = warning("probes_unanswered", "%(problem)s: probes get no answer")
DIGEST_NOT_SENT = warning(
    "digest_not_sent",
    "notifier %(notifier)s: digest %(digest_id)s (%(headline)s) was not sent, next try "
    "in %(seconds)g s: %(error)s",
)
MAIL_REFUSED = error(
    "mail_refused", "notifier %(notifier)s: %(address)s was refused: %(code)d %(answer)s"
)
CALL_CLAIM_LOST = warning(
    "call_claim_lost",
    "%(scope)s: the call with key %(key)r lost its claim, so it may have run twice",
)
REDIS_BACK = info("redis_back", "Redis answers again")
REDIS_LOST = warning(
    "redis_lost",
    "Redis (setting redis, RELIABLE_MQ_REDIS) cannot be used, the database decides alone: "
    "%(error)s",
)
LISTENER_MISSING = warning(
    "listener_missing", "no listener for half messages of topic %(topic)s in this process"
)
HALF_LEFT = info(
    "half_left",
    "half message %(message_id)s of topic %(topic)s is left to a check-back: %(error)s",
)
CHECK_BACK_ANSWERED = info(
    "check_back_answered", "half message %(message_id)s of topic %(topic)s: %(answer)s"
)
CHECK_BACK_POSTPONED = info(
    "check_back_postponed",
    "half message %(message_id)s of topic %(topic)s: the broker must ask again: %(error)s",
)
DELAYS_ROUNDED = warning("delays_rounded", "delays are rounded up to delay levels: %(error)s")
TOPIC_OPEN = info("topic_open", "topic %(topic)s: sends arrive again")
PROGRESS_UNREADABLE = warning(
    "progress_unreadable",
    "the progress of group %(group)s in topic %(topic)s cannot be read: %(error)s",
)
RESEND_DONE = info("resend_done", "resend: %(counts)s")
RETENTION_CLOCK_JUMPED = warning("retention_clock_jumped", "retention: %(problem)s")
PARTITION_STAYS = info("partition_stays", "retention: %(partition)s stays for now: %(error)s")
RETENTION_REMOVED = info("retention_removed", "retention: removed %(rows)s")
ATTEMPT_ROLLED_BACK = info(
    "attempt_rolled_back",
    "group %(group)s: attempt %(attempt)d at message %(message_id)s (key %(key)s) is "
    "rolled back, again in %(seconds)g s: %(reason)s",
)
ATTEMPT_FAILED = warning(
    "attempt_failed",
    "group %(group)s: attempt %(attempt)d at message %(message_id)s (key %(key)s) "
    "failed, again in %(seconds)g s: %(reason)s",
)
ESCALATION_BACKLOG = error(
    "escalation_backlog",
    "%(kind)s: topic %(topic)s, group %(group)s: %(reason)s; see `%(command)s`",
)
ESCALATION_RECONCILIATION = error(
    "escalation_reconciliation", "%(kind)s: run %(run_id)s: %(reason)s"
)
ESCALATION = error(
    "escalation",
    "%(kind)s: message %(message_id)s (key %(key)s) of topic %(topic)s, group %(group)s: "
    "%(reason)s; see `%(command)s`, then `%(remedy)s`",
)
ESCALATIONS_MORE = error("escalations_more", "%(headline)s; see `%(command)s`")
ESCALATION_TEST = error("escalation_test", "%(headline)s")
TOPIC_CLOSED = warning(
    "topic_closed",
    "topic %(topic)s is closed, only probes are sent: %(failures)d sends failed, none "
    "arrived: %(error)s",
)
RESEND_TURN = debug("resend_turn", "resend: %(counts)s")
SETTING_UNKNOWN = warning("setting_unknown", "%(variable)s sets nothing; did you mean %(meant)s?")
DATABASE_LOST = warning("database_lost", "database %(database)s cannot be reached: %(error)s")
DATABASE_BACK = info("database_back", "database %(database)s answers again after %(seconds).0f s")
CONSOLE_WORK_BROKEN = error(
    "console_work_broken", "work of the console has failed: %(title)s, number %(work)s"
)
CONSOLE_EXPORT_CUT = warning(
    "console_export_cut", "a download from the console was cut in the middle: %(error)s"
)
CONSOLE_USERS_UNREADABLE = warning(
    "console_users_unreadable", "the file of users cannot be read: %(error)s"
)
OPERATION_FAILING = warning("operation_failing", "%(what)s: %(error)s")
OPERATION_WORKS = info("operation_works", "%(what)s works again")
OPERATION_FAILED = error("operation_failed", "%(what)s: %(error)s")
OPERATION_WAITS = debug("operation_waits", "%(what)s: %(error)s")
