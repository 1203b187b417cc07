"""The log events of the broker and the name server."""

from reliable_mq.telemetry.log_event import critical, debug, error, info, warning

CONFIG_RESTORED = warning(
    "config_restored", "%(path)s is %(fault)s; its earlier content was loaded from %(copy)s"
)
CONFIG_MISSING = warning(
    "config_missing",
    "%(path)s is missing beside a log: topics, and all else that config/ had (settings "
    "of groups, offsets of groups), start empty; restore the folder from a copy",
)
CONFIG_EMPTY = warning(
    "config_empty", "%(path)s is empty and has no readable copy: the table starts empty"
)
CONFIG_NOT_WRITTEN = warning(
    "config_not_written",
    "no room to write %(path)s; the next start computes its content again",
)
ACCESS_REFUSED = warning(
    "access_refused", "request %(code)d of client %(client)s is refused: %(reason)s"
)
AUDIT_NOT_WRITTEN = error(
    "audit_not_written",
    "%(path)s: %(problem)s; changes by administrators have no line until it can be written again; "
    "%(advice)s",
)
AUDIT_WRITTEN_AGAIN = warning(
    "audit_written_again", "%(path)s can be written again; %(lost)d lines are missing"
)
CLIENT_ANSWER_UNUSABLE = error(
    "client_answer_unusable", "cannot use the answer of client %(client)s"
)
LOG_FILE_MISSING_ROOM = warning(
    "log_file_missing_room",
    "no room for the log's next file; the broker will retry: %(error)s",
)
INDEX_STUCK = warning("index_stuck", "cannot write the index, indexing pauses: %(error)s")
CLIENT_CALLBACK_FAILED = error(
    "client_callback_failed", "the callback for a client call without an answer failed"
)
HALF_GIVEN_UP = warning(
    "half_given_up",
    "half message %(message_id)s (key %(key)s) at log offset %(log_offset)d is given up: %(error)s",
)
HALF_NOT_KEPT = warning(
    "half_not_kept",
    "half message %(message_id)s (key %(key)s) cannot be stored for inspection, either: %(error)s",
)
HALF_NOT_CHECKED = warning(
    "half_not_checked",
    "cannot check the half message at log offset %(log_offset)d: %(error)s",
)
DELAYED_MESSAGE_DROPPED = warning(
    "delayed_message_dropped",
    "delayed message %(message_id)s (key %(key)s) at log offset %(log_offset)d is never "
    "delivered: %(error)s",
)
POP_RECORD_UNREADABLE = warning(
    "pop_record_unreadable",
    "the record at log offset %(log_offset)d says nothing about popped messages: %(error)s",
)
POPPED_MESSAGE_DROPPED = warning(
    "popped_message_dropped",
    "popped message %(message_id)s (key %(key)s) at log offset %(log_offset)d does not come back: "
    "%(error)s",
)
POPPED_MESSAGE_GONE = warning(
    "popped_message_gone",
    "the message at offset %(queue_offset)d of %(topic)s queue %(queue_id)d, which group %(group)s "
    "had popped, does not come back: %(reason)s",
)
TIMER_ENTRY_MISSING = error(
    "timer_entry_missing",
    "timer log: no entry at %(position)d; earlier entries of its slot are lost",
)
TIMED_MESSAGE_MISSING = warning(
    "timed_message_missing", "no timed message at log offset %(log_offset)d"
)
TIMER_LOG_NO_ROOM = warning(
    "timer_log_no_room", "no room for the timer log; the broker will retry: %(error)s"
)
TIMED_MESSAGE_UNREADABLE = warning(
    "timed_message_unreadable",
    "message %(queue_offset)d of %(topic)s is not a timed message",
)
TIMED_MESSAGE_DROPPED = warning(
    "timed_message_dropped",
    "timed message %(message_id)s (key %(key)s) at log offset %(log_offset)d is never "
    "delivered: %(error)s",
)
GROUP_NOT_CREATED = warning("group_not_created", "group %(group)s is not created: %(reason)s")
LOG_BEGIN_MOVED = info("log_begin_moved", "the log now begins at %(log_offset)d")
LOG_CLOCK_JUMPED = warning("log_clock_jumped", "files of the log: %(problem)s")
DISK_FILLING = warning("disk_filling", "the disk is %(percent).0f %% full, %(problem)s")
LOG_FILES_FORCED = warning(
    "log_files_forced",
    "the disk is %(percent).0f %% full: %(files)d log files are removed (%(bytes)d "
    "bytes), %(young)d of them before their fileReservedTime of %(hours)d h; consumers "
    "that have not read them lose messages",
)
ORDERED_TOPICS_UNREADABLE = warning(
    "ordered_topics_unreadable",
    "cannot read the ordered topics in the reply of a name server: %(error)s",
)
FILTER_FAILED = error("filter_failed", "the filter of %(client)s cannot judge the new messages")
REQUEST_FAILED = error("request_failed", "request %(code)d of %(client)s failed")
OFFSET_DROPPED = warning(
    "offset_dropped",
    "no room for the offset of group %(group)s in topic %(topic)s: commit dropped",
)
WAITING_PULL_FAILED = error("waiting_pull_failed", "the waiting pull of %(client)s failed")
REPLY_NOT_STORED = warning(
    "reply_not_stored",
    "a reply, message %(message_id)s (key %(key)s) of topic %(topic)s, is not stored: %(error)s",
)
BROKER_SETTING_DOUBTFUL = warning("broker_setting_doubtful", "%(problem)s")
FILTER_UNREADABLE = warning(
    "filter_unreadable", "cannot parse the filter %(filter).200s: %(error)s"
)
LOG_DAMAGED = warning(
    "log_damaged",
    "%(path)s: no valid record at %(file_offset)d (log offset %(log_offset)d), %(bytes)d "
    "bytes are damaged: readers skip them and get the records after them; restore the "
    "file from a copy",
)
LOG_DAMAGE_UNLISTED = error(
    "log_damage_unlisted", "%(places)d damaged places were logged; further ones are not"
)
QUEUE_DELETED_ELSEWHERE = warning(
    "queue_deleted_elsewhere",
    "another broker deleted queue %(queue_id)d of topic %(topic)s: its messages are not shown",
)
INDEX_FILE_IGNORED = warning(
    "index_file_ignored", "%(path)s: not an index file of the configured size; it is ignored"
)
INDEX_NO_ROOM = warning(
    "index_no_room",
    "%(path)s: no room for the file; the index is rebuilt when there is room",
)
QUEUES_NO_ROOM = warning(
    "queues_no_room", "no room for the units of all queues; the last checkpoint stays valid"
)
QUEUES_LEFT_UNWRITTEN = warning(
    "queues_left_unwritten",
    "%(count)d queues have units in memory only: the next start makes their files from the log",
)
CHECKPOINT_NO_ROOM = warning(
    "checkpoint_no_room", "no room for a checkpoint; the last one stays valid: %(error)s"
)
QUEUE_UNIT_REBUILT = warning(
    "queue_unit_rebuilt",
    "%(path)s: the unit of message %(queue_offset)d was damaged, it is built again from "
    "the log, which has the message at log offset %(log_offset)d",
)
QUEUE_UNIT_DAMAGED = warning(
    "queue_unit_damaged",
    "%(path)s: the unit of message %(queue_offset)d is damaged, and the log has no such "
    "message near those of its neighbours: readers skip it; to repair it, stop the "
    "broker, remove the queue's folder and start the broker: it builds the queue again "
    "from the log",
)
LOG_END_TORN = warning(
    "log_end_torn",
    "the log ends at %(log_offset)d, where a record is torn: later records were not "
    "known to be on the medium when the machine stopped, and are removed",
)
LOG_END_LOST = warning(
    "log_end_lost",
    "the log ends at %(log_offset)d but was known up to %(lost_offset)d: acknowledged "
    "messages are missing; reconciliation names them",
)
TIMER_FILES_MISSING = warning(
    "timer_files_missing", "timer files are missing; the rest is rebuilt from the log"
)
TIMER_CHECKPOINT_NO_ROOM = warning(
    "timer_checkpoint_no_room",
    "no room for a timer checkpoint; the last one stays valid: %(error)s",
)
QUEUE_UNIT_BEYOND_LOG = warning(
    "queue_unit_beyond_log",
    "a consume queue names log offset %(log_offset)d, but the log ends at %(log_end)d: "
    "the unit is damaged and skipped; remove the queue's files, the next start builds "
    "them again",
)
NAME_SERVER_REQUEST_FAILED = error("name_server_request_failed", "request %(code)d failed")
BROKER_BROKEN = critical("broker_broken", "the broker cannot continue and stops: %(error)s")
BROKER_NOT_SAVED = warning(
    "broker_not_saved", "no room to save everything, the next start recovers: %(error)s"
)
CONNECTION_REFUSED = warning(
    "connection_refused",
    "%(client)s: refused, few descriptors are left; raise the limit of files",
)
CONNECTION_TOO_MANY = warning("connection_too_many", "%(client)s: refused, %(reason)s")
CONNECTIONS_NOT_ACCEPTED = error(
    "connections_not_accepted", "no connection can be accepted for a second: %(error)s"
)
CONNECTION_BROKEN = error("connection_broken", "requests of a connection cannot be handled")
DISK_FULL = critical("disk_full", "%(problem)s, sends are refused; %(advice)s: %(error)s")
DISK_HAS_ROOM = info("disk_has_room", "the disk has room again")
CONFIG_DELAYED = warning(
    "config_delayed",
    "%(path)s: no room for it, it is written later; %(problem)s: %(advice)s",
)
SETTINGS_NOT_SAVED = warning("settings_not_saved", "the settings cannot be saved: %(error)s")
SETTINGS_SAVING_BROKEN = error("settings_saving_broken", "the settings cannot be saved")
REGISTRATION_REFUSED = warning(
    "registration_refused", "%(name_server)s refuses a registration: %(remark)s"
)
REGISTRATION_FAILED = warning(
    "registration_failed", "cannot register at %(name_server)s: %(error)s"
)
UNREGISTRATION_FAILED = info(
    "unregistration_failed", "cannot unregister at %(name_server)s: %(error)s"
)
LOG_SYNCED_BY_THREAD = info("log_synced_by_thread", "a thread syncs the log: %(error)s")
KERNEL_SYNC_REFUSED = debug(
    "kernel_sync_refused", "the kernel does not sync, a thread does: %(error)s"
)
ANSWER_NOT_ENCODED = warning(
    "answer_not_encoded", "cannot encode an answer, send SYSTEM_ERROR instead: %(error)s"
)
CALL_BROKEN = error("call_broken", "%(call)s: the call has failed, its client is told")
CONNECTION_CUT = warning("connection_cut", "%(client)s: %(reason)s")
WRONG_PORT = warning("wrong_port", "%(client)s: closed, %(reason)s")
PROXY_REFUSED = error(
    "proxy_refused",
    "broker %(broker)s at %(address)s refuses this proxy as %(user)s (%(reason)s), so calls of "
    "clients fail: write a super user of the brokers into innerClientAuthenticationCredentials in "
    "the file of --config, and start the proxy again",
)
CONNECTION_SILENT = info("connection_silent", "%(client)s: closed, it was silent too long")
BROKER_EXPOSED = error(
    "broker_exposed",
    "%(address)s IS OPEN TO EVERYBODY: whoever reaches it reads and deletes every message; listen "
    "at 127.0.0.1, or set authenticationEnabled=true and authorizationEnabled=true, or demand "
    "certificates: tls.server.mode=enforcing and tls.server.need.client.auth=require",
)
NAME_SERVER_EXPOSED = error(
    "name_server_exposed",
    "%(address)s IS OPEN TO EVERYBODY: whoever reaches it registers brokers, and so receives "
    "messages; listen at 127.0.0.1, or demand certificates: tls.server.mode=enforcing and "
    "tls.server.need.client.auth=require",
)
LOG_EXPOSED = error(
    "log_exposed",
    "%(address)s GIVES EVERY MESSAGE TO EVERYBODY: whoever reaches it gets the whole log, as a "
    "slave does; say in haAllowedAddresses where slaves are, or listen at 127.0.0.1",
)
SLAVE_FOLLOWS = info("slave_follows", "slave %(slave)s follows, from log offset %(log_offset)d on")
SLAVES_NOT_ENCRYPTED = warning(
    "slaves_not_encrypted",
    "haTlsEnable=false: slaves get the log without encryption, though tls.server.mode is enforcing",
)
SLAVE_GONE = warning("slave_gone", "slave %(slave)s has gone")
SLAVE_CUT = warning("slave_cut", "slave %(slave)s: closed: %(reason)s")
MASTER_FOLLOWED = info(
    "master_followed", "this slave follows master %(master)s, from log offset %(log_offset)d on"
)
COPY_WITHOUT_ROOM = error(
    "copy_without_room",
    "no room for the log of master %(master)s: this slave has it up to offset %(log_offset)d, "
    "acknowledges no more, and goes on when there is room",
)
MASTER_UNKNOWN = warning(
    "master_unknown",
    "this slave has no master: no name server knows one with %(who)s; names and name servers of "
    "both sides must be the same",
)
MASTER_LOST = warning("master_lost", "master %(master)s is not followed: %(reason)s")
MASTER_TABLES_MISSED = warning(
    "master_tables_missed",
    "the tables of master %(master)s are not taken over: %(error)s; the slave has older ones",
)
STANDS_IN = warning(
    "stands_in",
    "no master is there with %(who)s: this slave stands in for it and %(what)s; its log ends at "
    "%(log_end)d",
)
STANDS_IN_NO_LONGER = info(
    "stands_in_no_longer",
    "this slave stands in no longer: %(reason)s; it has delivered %(messages)d messages to other "
    "masters",
)
NOT_DELIVERED_ELSEWHERE = warning(
    "not_delivered_elsewhere",
    "a message of topic %(topic)s is due, and waits for its master: %(reason)s",
)
SLAVE_PROGRESS_UNKNOWN = info(
    "slave_progress_unknown", "slave %(slave)s does not say what it has delivered: %(error)s"
)
PROGRESS_TAKEN_BACK = info(
    "progress_taken_back", "what slave %(slave)s has delivered and consumed is taken over"
)
PRE_ONLINE_GIVEN_UP = warning(
    "pre_online_given_up",
    "after %(seconds)g s this master serves without the progress of %(slaves)s: %(reason)s. What "
    "they have delivered comes again",
)
SLAVE_AHEAD = warning(
    "slave_ahead",
    "the log of slave %(slave)s ends at %(end)d, and this one at %(own_end)d: its progress is not "
    "taken over. What it has delivered comes again",
)
CONTROLLER_AWAY = warning(
    "controller_away",
    "no controller at %(controllers)s says who the master is: %(reason)s; the broker tries again, "
    "and keeps its role meanwhile",
)
CONTROLLER_BACK = info("controller_back", "controller %(controller)s answers again")
MASTER_ELECTED = warning(
    "master_elected",
    "the controller has elected broker %(broker_id)d at %(master)s as the master, in epoch "
    "%(epoch)d; this broker starts again with its new role",
)
ROLE_IN_DOUBT = warning(
    "role_in_doubt", "%(error)s; this broker asks the controller again who the master is"
)
NOT_STARTED_AGAIN = warning(
    "not_started_again", "this broker cannot start with its new role yet: %(error)s"
)
EPOCH_NOT_NOTED = warning(
    "epoch_not_noted",
    "epoch %(epoch)d of the controller cannot be noted: %(error)s; the broker tries again",
)
IN_SYNC_CHANGED = info("in_sync_changed", "replicas %(replicas)s are in sync now")
IN_SYNC_NOT_CHANGED = warning(
    "in_sync_not_changed",
    "the controller does not take %(wanted)s as the replicas in sync: %(reason)s",
)
LOG_TRUNCATED = warning(
    "log_truncated",
    "%(messages)d messages from log offset %(log_offset)d to %(log_end)d were removed from the "
    "log: the master does not have them; they are kept in %(path)s",
)
ROLE_CHANGED = warning("role_changed", "this store has role %(role)s and epoch %(epoch)d now")
MASTER_FENCED = error(
    "master_fenced", "this broker takes no messages any more and stops: %(error)s"
)
TABLES_PORT_TAKEN = warning(
    "tables_port_taken",
    "%(reason)s. Brokers of ours do not need this port; Apache's get no topics without it, and "
    "Apache's master does not come back while a slave of ours stands in for it",
)
SERVER_STOPPED = info("server_stopped", "the %(server)s at %(address)s has stopped")
REGISTRATION_BACK = info("registration_back", "registered at %(name_server)s again")
FIGURES_FAILED = error(
    "figures_failed", "the figures of the %(source)s for its metrics cannot be read; it serves on"
)
TLS_WANTED = warning(
    "tls_wanted",
    "%(client)s: closed, it does not speak TLS, and tls.server.mode is enforcing",
)
TLS_REFUSED = warning("tls_refused", "%(client)s: closed, the TLS handshake failed: %(reason)s")
TLS_GIVEN_UP = warning(
    "tls_given_up", "%(client)s: closed, its TLS handshake was not done in %(seconds)g s"
)
TLS_BROKEN = warning("tls_broken", "%(client)s: closed, its TLS connection broke: %(reason)s")
TLS_RELOADED = info("tls_reloaded", "%(path)s: new connections have this certificate")
TLS_NOT_RELOADED = warning(
    "tls_not_reloaded",
    "the changed certificate is not used, the one before it goes on: %(error)s",
)
TLS_UNVERIFIED = warning(
    "tls_unverified",
    "tls.client.authServer=false: every server is trusted, also one that pretends to be the name "
    "server; use it for tests only",
)
TLS_CERTIFICATE_DOUBTFUL = error(
    "tls_certificate_doubtful",
    "%(path)s: CLIENTS REFUSE THIS CERTIFICATE: %(problem)s; give a new one, it is read without a "
    "restart",
)
