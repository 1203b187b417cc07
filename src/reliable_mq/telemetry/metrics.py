"""All metrics: name, type, unit, labels, and what they say. The only place that declares one.

`METRICS` is what the reference shows. `families.py` and the client's `PrometheusMiddleware` make
Prometheus metrics of it. Where OpenTelemetry's semantic conventions for messaging (1.44.0) have a
metric, ours has its name and attributes, in Prometheus' spelling: dots become underscores, the unit
and `_total` are appended.
"""

from functools import partial
from typing import Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]
Unit = Literal["", "seconds", "bytes", "ratio"]
Source = Literal[
    "client", "application", "worker", "broker", "name server", "endpoint", "console", "reconcile"
]
SOURCES: dict[Source, str] = {
    "client": "`PrometheusMiddleware`; `run` and `resend` add it when `--metrics-port` is given",
    "application": "`run` and `resend`, read from the databases every ten seconds at most",
    "worker": "`run`, and `resend` for its own parts",
    "broker": "`broker`, and `run` with an embedded broker",
    "name server": "`namesrv`, and `broker` with a name server of its own",
    "endpoint": "`proxy`, and `broker` with `--grpc-port`",
    "console": "`console`, at its address `/metrics`, beside the figures of the application",
    "reconcile": "`reconcile --prometheus FILE`",
}
"""Who serves the metrics of each source."""


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: the name in Prometheus; a counter's ends with `_total`.
        kind: counter, gauge or histogram.
        unit: the unit of a value; "": it counts things.
        labels: the names of the labels, in order.
        help: what it says, in one sentence.
        source: which part has it, see `SOURCES`.
        since: the release that had it first.
        convention: the name in OpenTelemetry's conventions; "": they have none.
        alias_of: the metric whose earlier name this is; "": none.
    """

    name: str
    kind: Kind
    unit: Unit
    labels: tuple[str, ...]
    help: str
    source: Source
    since: str = "0.1.0"
    convention: str = ""
    alias_of: str = ""


OPERATION = "messaging_operation_name"
SYSTEM = "messaging_system"
DESTINATION = "messaging_destination_name"
GROUP_NAME = "messaging_consumer_group_name"
ERROR_TYPE = "error_type"
ROCKETMQ = "rocketmq"
"""The value of the label `messaging_system`."""

_SENT = (OPERATION, SYSTEM, DESTINATION, ERROR_TYPE)
_CONSUMED = (OPERATION, SYSTEM, DESTINATION, GROUP_NAME, ERROR_TYPE)
_BY_GROUP = ("group", "topic")

_CLIENT = (
    Metric(
        "messaging_client_sent_messages_total",
        "counter",
        "",
        _SENT,
        "Messages that this client tried to send; error_type is empty if it was stored",
        "client",
        convention="messaging.client.sent.messages",
    ),
    Metric(
        "messaging_client_operation_duration_seconds",
        "histogram",
        "seconds",
        _SENT,
        "Duration of calls that send, all attempts together",
        "client",
        convention="messaging.client.operation.duration",
    ),
    Metric(
        "messaging_client_consumed_messages_total",
        "counter",
        "",
        _CONSUMED,
        "Messages that a handler got, or poll and receive returned",
        "client",
        convention="messaging.client.consumed.messages",
    ),
    Metric(
        "messaging_process_duration_seconds",
        "histogram",
        "seconds",
        _CONSUMED,
        "Duration of the calls of handlers",
        "client",
        convention="messaging.process.duration",
    ),
    Metric(
        "reliable_mq_sent_bytes_total",
        "counter",
        "bytes",
        ("topic",),
        "Bytes of the bodies that were stored, or sent without an answer",
        "client",
    ),
    Metric(
        "reliable_mq_sending_messages",
        "gauge",
        "",
        ("topic",),
        "Messages in flight",
        "client",
    ),
    Metric(
        "reliable_mq_handled_messages_total",
        "counter",
        "",
        (*_BY_GROUP, "outcome"),
        "Messages by outcome: consumed, later, postponed, dead, failed, received",
        "client",
    ),
    Metric(
        "reliable_mq_handling_messages",
        "gauge",
        "",
        _BY_GROUP,
        "Messages in handlers now; only this shows a handler that hangs",
        "client",
    ),
    Metric(
        "reliable_mq_age_seconds",
        "histogram",
        "seconds",
        _BY_GROUP,
        "Age of a message when its handler is called, from the time it was stored",
        "client",
    ),
    Metric(
        "reliable_mq_lag_messages",
        "gauge",
        "",
        _BY_GROUP,
        "Unfinished messages of the queues that this process reads, from its last pulls",
        "client",
    ),
    Metric(
        "reliable_mq_sent_messages_total",
        "counter",
        "",
        ("topic", "result"),
        "Messages by result: stored, unanswered, or the name of an error",
        "client",
        alias_of="messaging_client_sent_messages_total",
    ),
    Metric(
        "reliable_mq_send_seconds",
        "histogram",
        "seconds",
        ("topic",),
        "Duration of calls that send, all attempts together",
        "client",
        alias_of="messaging_client_operation_duration_seconds",
    ),
    Metric(
        "reliable_mq_handling_seconds",
        "histogram",
        "seconds",
        _BY_GROUP,
        "Duration of the calls of handlers",
        "client",
        alias_of="messaging_process_duration_seconds",
    ),
)

_APPLICATION = (
    Metric(
        "reliable_mq_outbox_unsent_stubs",
        "gauge",
        "",
        ("database", "topic"),
        "Committed stubs that no broker has stored yet: the backlog of the outbox",
        "application",
    ),
    Metric(
        "reliable_mq_outbox_unconfirmed_stubs",
        "gauge",
        "",
        ("database", "topic"),
        "Sent stubs that not all of their consumer groups have consumed",
        "application",
    ),
    Metric(
        "reliable_mq_outbox_oldest_unsent_seconds",
        "gauge",
        "seconds",
        ("database",),
        "Age of the oldest stub that could leave and was not sent; 0: there is none",
        "application",
    ),
    Metric(
        "reliable_mq_escalations_open",
        "gauge",
        "",
        ("database", "kind"),
        "Open escalations that wait for a person, by kind; dead letters are counted apart",
        "application",
    ),
    Metric(
        "reliable_mq_dead_letters_open",
        "gauge",
        "",
        ("database", "group"),
        "Dead letters of a consumer group that nobody has retried or given up",
        "application",
    ),
    Metric(
        "reliable_mq_database_up",
        "gauge",
        "",
        ("database",),
        "1: the last reading of the database's metrics succeeded; 0: it failed or took too long",
        "application",
    ),
    Metric(
        "reliable_mq_database_reading_age_seconds",
        "gauge",
        "seconds",
        ("database",),
        "Age of the database's metrics: readings are kept for some seconds",
        "application",
    ),
)

_WORKER = (
    Metric(
        "reliable_mq_handler_calls",
        "gauge",
        "",
        ("group",),
        "Running calls of a consumer group's handler: the busy part of its pool",
        "worker",
    ),
    Metric(
        "reliable_mq_handler_calls_max",
        "gauge",
        "",
        ("group",),
        "The most calls of a consumer group's handler that run at once: the size of its pool",
        "worker",
    ),
    Metric(
        "reliable_mq_relay_waiting_stubs",
        "gauge",
        "",
        ("database",),
        "Committed stubs that wait in the relays of this process",
        "worker",
    ),
    Metric(
        "reliable_mq_redis_breaker_open",
        "gauge",
        "",
        (),
        "Circuit breakers of Redis that are not closed; above 0 the database decides alone",
        "worker",
    ),
)


def _of_server(
    source: Source,
    name: str,
    text: str,
    kind: Kind = "gauge",
    unit: Unit = "",
    labels: tuple[str, ...] = (),
) -> Metric:
    prefix = f"reliable_mq_{source.replace(' ', '_')}"
    return Metric(f"{prefix}_{name}", kind, unit, labels, text, source)


def _of_sockets(source: Source) -> tuple[Metric, ...]:
    """Return the metrics of the connections of a server."""
    refused = (
        "Connections refused since the start, by the limit: all, address (open ones), rate (new"
        " ones of one address in a second)"
    )
    outcomes = "TLS handshakes of this process: done, failed, given_up (too slow), plain (no TLS)"
    expiry = (
        "When the certificate of this process expires, as a Unix time; 0: there is no valid one"
    )
    return (
        _of_server(source, "refused_connections_total", refused, "counter", labels=("limit",)),
        _of_server(source, "tls_handshakes_total", outcomes, "counter", labels=("outcome",)),
        _of_server(source, "tls_certificate_expiry_seconds", expiry, unit="seconds"),
    )


_SLAVE = ("slave",)
"""The address of a slave's connection, as `mqadmin haStatus` shows it."""

_of_broker = partial(_of_server, "broker")
_of_name_server = partial(_of_server, "name server")

_BROKER = (
    *_of_sockets("broker"),
    _of_broker("messages_in_total", "Messages that were stored since the start", "counter"),
    _of_broker("messages_out_total", "Messages that pulls have got since the start", "counter"),
    _of_broker("in_bytes_total", "Bytes of the stored messages", "counter", "bytes"),
    _of_broker("out_bytes_total", "Bytes of the messages that pulls have got", "counter", "bytes"),
    _of_broker("refused_sends_total", "Sends refused since the start: disk or flow", "counter"),
    _of_broker(
        "quota_refusals_total",
        "Requests refused since the start by quotas: of a topic, of a group, of a user",
        "counter",
        labels=("of",),
    ),
    _of_broker(
        "refused_creations_total",
        "Requests refused since the start that would create a topic or a group: too many, in all or"
        " of one user",
        "counter",
        labels=("of",),
    ),
    _of_broker("refused_access_total", "Requests refused by access control", "counter"),
    _of_broker("refused_pulls_total", "Pulls refused since the start: too many wait", "counter"),
    _of_broker(
        "refused_timed_messages_total",
        "Timed messages refused since the start: too many wait for their time",
        "counter",
    ),
    _of_broker("connections", "Open connections of clients and tools"),
    _of_broker("waiting_sends", "Sends that wait until the log is stored"),
    _of_broker("waiting_pulls", "Pulls that wait for a message"),
    _of_broker("waiting_pops", "Pops that wait for a message, and notifications"),
    _of_broker(
        "popped_messages_gone_total",
        "Popped messages that did not come back, because the broker had deleted them",
        "counter",
    ),
    _of_broker("popped_messages", "Popped messages that are in flight"),
    _of_broker("topics", "Topics, the broker's own included"),
    _of_broker("consumer_groups", "Known consumer groups"),
    _of_broker(
        "consumer_lag_seconds",
        "Age of the oldest message that a group has not consumed, at a master; 0: there is none",
        unit="seconds",
        labels=_BY_GROUP,
    ),
    _of_broker("commit_log_start_bytes", "Log offset of the oldest kept message", unit="bytes"),
    _of_broker("commit_log_end_bytes", "Log offset behind the newest message", unit="bytes"),
    _of_broker("flush_lag_bytes", "Bytes of the log that are not synced yet", unit="bytes"),
    _of_broker("dispatch_lag_bytes", "Bytes of the log no queue shows yet", unit="bytes"),
    _of_broker("index_lag_bytes", "Bytes of the log that the index lacks", unit="bytes"),
    _of_broker("disk_used_ratio", "Used share of the store's disk", unit="ratio"),
    _of_broker("disk_free_bytes", "Free bytes of the store's disk", unit="bytes"),
    _of_broker("timers_waiting_messages", "Timed messages that wait for their time"),
    _of_broker("timers_behind_seconds", "How late timed messages are delivered", unit="seconds"),
    _of_broker("halves_waiting_messages", "Half messages without a commit or rollback"),
    _of_broker("connected_slaves", "At a master: slaves that follow it"),
    _of_broker("in_sync_slaves", "At a master: slaves that lack less than haMaxGapNotInSync"),
    _of_broker(
        "needed_slaves",
        "At a master: slaves that must have a message before it is acknowledged; 0: none",
    ),
    _of_broker("slave_lag_bytes", "Bytes of the log that a slave lacks", "gauge", "bytes", _SLAVE),
    _of_broker(
        "slave_lag_seconds",
        "Age of the oldest message that a slave lacks; 0: it lacks none",
        unit="seconds",
        labels=_SLAVE,
    ),
    _of_broker(
        "slave_report_age_seconds",
        "Time since a slave has reported; after 20 s its connection is closed",
        unit="seconds",
        labels=_SLAVE,
    ),
    _of_broker(
        "slave_sent_bytes_total",
        "Bytes of the log that a slave was sent on its connection",
        "counter",
        "bytes",
        _SLAVE,
    ),
    _of_broker("master_connected", "At a slave: 1: it follows its master; 0: it does not"),
    _of_broker(
        "behind_master_bytes", "At a slave: bytes of its master's log that it lacks", unit="bytes"
    ),
    _of_broker(
        "behind_master_seconds",
        "At a slave: age of the oldest message that it lacks, at most; 0: it lacks none",
        unit="seconds",
    ),
    _of_broker(
        "master_report_age_seconds", "At a slave: time since it has reported", unit="seconds"
    ),
    _of_broker(
        "master_tables_age_seconds",
        "At a slave: time since it has taken over its master's topics, groups and offsets",
        unit="seconds",
    ),
    _of_broker(
        "master_received_bytes_total",
        "At a slave: bytes of its master's log that have arrived",
        "counter",
        "bytes",
    ),
    _of_broker("stands_in", "At a slave: whether it stands in for its master"),
    _of_broker(
        "delivered_elsewhere_messages_total",
        "At a slave: messages that it has delivered to other masters in its master's place",
        "counter",
    ),
    _of_broker(
        "reading_age_seconds",
        "Age of these figures: above a few seconds, the broker's event loop does not run",
        unit="seconds",
    ),
)

_NAME_SERVER = (
    *_of_sockets("name server"),
    _of_name_server("brokers", "Registered brokers"),
    _of_name_server(
        "refused_registrations_total",
        "Registrations refused since the start: no room for the broker or its topics, or no rights",
        "counter",
    ),
    _of_name_server(
        "refused_access_total", "Requests refused by access control since the start", "counter"
    ),
    _of_name_server("topics", "Registered topics; one at several brokers counts for each"),
    _of_name_server("connections", "Open connections of brokers, clients and tools"),
    _of_name_server(
        "reading_age_seconds",
        "Age of these figures: above a few seconds, the event loop does not run",
        unit="seconds",
    ),
)

_of_endpoint = partial(_of_server, "endpoint")

_ENDPOINT = (
    *_of_sockets("endpoint"),
    _of_endpoint("connections", "Open connections of gRPC clients"),
    _of_endpoint(
        "calls_total",
        "Calls that were answered since the start, by the code of the answer; 20000: it did it",
        "counter",
        labels=("call", "code"),
    ),
    _of_endpoint("running_calls", "Calls and commands that are being answered, also if they wait"),
    _of_endpoint("waiting_receives", "Receives and pulls that wait for a message"),
    _of_endpoint("clients", "Clients that have told their settings"),
    _of_endpoint("command_streams", "Clients whose stream of commands (Telemetry) is open"),
    _of_endpoint("renewed_messages", "Messages of push consumers whose time is renewed"),
    _of_endpoint(
        "renewals_total",
        "Renewals since the start: done, failed (the message may come again)",
        "counter",
        labels=("outcome",),
    ),
    _of_endpoint(
        "reading_age_seconds",
        "Age of these figures: above a few seconds, the event loop does not run",
        unit="seconds",
    ),
)


_of_console = partial(_of_server, "console")

_CONSOLE = (
    _of_console(
        "answers_total",
        "Answers to browsers since the start, by the first digit of their status",
        "counter",
        labels=("status",),
    ),
    _of_console("answer_seconds_total", "Time that all these answers took", "counter", "seconds"),
    _of_console("refused_log_ins_total", "Log-ins refused since the start", "counter"),
    _of_console("running_works", "Pieces of work that people have started and that run now"),
    _of_console(
        "works_total",
        "Pieces of work since the start: ended, cancelled, failed",
        "counter",
        labels=("state",),
    ),
    _of_console(
        "rows_total",
        "Rows that they handled: done, changed (since the preview), refused",
        "counter",
        labels=("outcome",),
    ),
)


def _of_run(name: str, text: str, unit: Unit = "", labels: tuple[str, ...] = ()) -> Metric:
    return Metric(f"reliable_mq_reconcile_{name}", "gauge", unit, labels, text, "reconcile")


_RECONCILE = (
    _of_run("finished_timestamp_seconds", "When the last run ended", "seconds"),
    _of_run("as_of_timestamp_seconds", "The moment of the judgement", "seconds"),
    _of_run("duration_seconds", "How long the run took", "seconds"),
    _of_run("clean", "1: no finding, no damage, every ledger whole"),
    _of_run("messages", "Messages that were judged"),
    _of_run("findings", "Findings of the run"),
    _of_run(
        "verdicts",
        "Verdicts, one for each message and consumer group",
        labels=("verdict", "topic", "consumer_group"),
    ),
    _of_run("ledger_rows", "Rows that were read of each ledger", labels=("ledger",)),
    _of_run(
        "ledger_whole",
        "1: the ledger was read whole; 0: the report says what is missing",
        labels=("ledger",),
    ),
    _of_run("damaged_bytes", "Bytes of the log that are no records", "bytes"),
    _of_run(
        "latency_seconds",
        "Time from one station to the next",
        "seconds",
        ("station", "topic", "quantile"),
    ),
    _of_run(
        "repairs",
        "Stubs that the run meant to change, and has changed",
        labels=("action", "state"),
    ),
)

METRICS: dict[str, Metric] = {
    each.name: each
    for each in (
        *_CLIENT,
        *_APPLICATION,
        *_WORKER,
        *_BROKER,
        *_NAME_SERVER,
        *_ENDPOINT,
        *_CONSOLE,
        *_RECONCILE,
    )
}
"""All metrics by name, in the order of the reference."""


def metrics_of(source: Source) -> list[Metric]:
    """Return the metrics of a source, in the order of the reference."""
    return [each for each in METRICS.values() if each.source == source]
