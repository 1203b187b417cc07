"""The lists of the cluster: topics, groups, queues of a group, brokers; and periodic messages."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import asdict

from reliable_mq.cli.group_offsets import queue_rows
from reliable_mq.cli.remote_words import words_of
from reliable_mq.client.administering.cluster_facts import BrokerFacts
from reliable_mq.client.administering.thread_admin import Admin
from reliable_mq.console.lists import Field, ListColumn, ListPage, RowList, WantedPage
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.sql_pages import part_of
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import MessageQueue
from reliable_mq.resend.topic_gate import TopicGate, gate_of


def _away(failures: Mapping[str, Exception]) -> tuple[str, ...]:
    return tuple(f"broker {name}: {words_of(error)}" for name, error in failures.items())


def _topics(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    """The topics of the cluster and of the databases. A gate is shown even if no broker answers."""
    gates: dict[str, list[dict[str, Any]]] = {}
    for name, topics in sources.mq.resending.topics().items():
        now = sources.databases[name].clock.now()
        for topic, row in topics.items():
            until = row.paused_until if row.is_paused else row.probe_time
            gates.setdefault(sources.whole_name(topic), []).append(
                {
                    "gate": gate_of(row, now).value,
                    "gate_until": None if until is None else datetime.fromtimestamp(until, UTC),
                    "by": row.actor,
                    "note": row.note,
                    "database": name,
                }
            )
    away: tuple[str, ...] = (sources.why_no_cluster,) if sources.why_no_cluster else ()
    known = {*gates, *map(sources.whole_name, sources.mq.topics)}
    if not away:
        with sources.admin() as admin:
            answers = admin.topics.names(everything=bool(wanted.values.get("all")))
        known |= {*answers.value}
        away = _away(answers.failures)
    is_open = {"gate": TopicGate.OPEN.value, "gate_until": None, "by": "", "note": ""}
    rows = [
        {"topic": topic, "database": "", **is_open, **gate}
        for topic in sorted(known)
        for gate in gates.get(topic, [{}])
        if wanted.text("name") in topic and wanted.agrees("stopped", topic in gates)
    ]
    page, after = part_of(rows, wanted.cursor, wanted.limit)
    return ListPage(page, after, away)


TOPICS = RowList(
    name="topics",
    title="Topics",
    summary="Topics of applications. Schedulers send no stubs of a topic that is paused or closed.",
    empty="No topic matches. A topic is created by its first message.",
    columns=(
        ListColumn("topic", "Topic"),
        ListColumn("gate", "Resending", "state"),
        ListColumn("gate_until", "Until", "time"),
        ListColumn("database", "Database"),
        ListColumn("by", "By"),
        ListColumn("note", "Reason"),
    ),
    fields=(
        Field("name", "Name holds"),
        Field("stopped", "Paused or closed", "flag"),
        Field("all", "Also topics of brokers and groups", "flag"),
    ),
    page=_topics,
)


def _groups(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    reading = sources.cluster.look()
    if reading.value is None:
        return ListPage((), away=(reading.fault or "no broker has answered yet",))
    # What is kept since a broker answered says so in each row, as a download has no other place.
    kept = {"seconds_old": round(reading.age) if reading.fault else None}
    rows = [
        asdict(each) | {"version": list(each.version)} | kept
        for each in sorted(reading.value.groups, key=lambda each: (-each.lag, each.group))
        if wanted.text("name") in each.group
        and wanted.agrees("behind", each.lag)
        and wanted.agrees("empty", not each.members)
    ]
    page, after = part_of(rows, wanted.cursor, wanted.limit)
    away = [f"broker {name}: {why}" for name, why in reading.value.failures.items()]
    if reading.fault:
        away.append(f"{reading.fault}; what is shown is {reading.age:.0f} s old")
    return ListPage(page, after, tuple(away))


GROUPS = RowList(
    name="groups",
    title="Groups",
    summary="Consumer groups, the one with the most waiting messages first.",
    empty="No group matches. A group appears when its first member has connected.",
    columns=(
        ListColumn("group", "Group", "group"),
        ListColumn("lag", "Lag", "number"),
        ListColumn("members", "Members", "number"),
        ListColumn("per_second", "A second", "number"),
        ListColumn("kind", "Kind"),
        ListColumn("model", "Model"),
        ListColumn("version", "Versions", "words"),
    ),
    fields=(
        Field("name", "Name holds"),
        Field("behind", "Has a lag", "flag"),
        Field("empty", "Without members", "flag"),
    ),
    page=_groups,
    exported=("seconds_old",),
)


def _queues(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    group, topic = wanted.text("group"), wanted.text("topic")
    if not group:
        return ListPage(())
    if group in sources.mq.consumer_groups:
        group = sources.whole_name(group)
    topic = sources.whole_name(topic) if topic in sources.mq.topics else topic
    with sources.admin() as admin:
        answers = admin.offsets.progress(group, topic)
        states = admin.groups.members(group)
        notes = list(_why_behind(admin, group, bool(states.value or states.failures)))
    owners: dict[MessageQueue, str] = {
        row.queue: each.client_id for each in states.value for row in each.queues
    }
    rows = queue_rows(answers.value, owners)
    page, after = part_of(rows, wanted.cursor, wanted.limit)
    away = _away({**answers.failures, **states.failures})
    return ListPage(page, after, away, tuple(notes))


def _why_behind(admin: Admin, group: str, may_have_members: bool) -> Iterator[str]:
    """Yield why a group gets no messages, in sentences."""
    if not may_have_members:
        yield "No member of this group is connected: no worker consumes for it."
    try:
        settings = admin.groups.settings(group).value
    except ReliableMQError:  # the page says what is away already
        return
    paused = [name for name, each in settings.items() if not each.may_consume]
    if paused:
        yield f"This group is paused at {', '.join(paused)}: it gets nothing until it is resumed."


QUEUES = RowList(
    name="queues",
    title="Queues of a group",
    summary="How far a consumer group is in each queue, and which member has it. The lag counts"
    " what is stored and not committed; it grows if an early message of a queue does not end.",
    empty="Name a group above. If one is named: it has committed nothing there yet.",
    columns=(
        ListColumn("topic", "Topic"),
        ListColumn("broker", "Broker"),
        ListColumn("queue", "Queue", "number"),
        ListColumn("lag", "Lag", "number"),
        ListColumn("committed", "Offset", "number"),
        ListColumn("end", "End", "number"),
        ListColumn("in_flight", "In flight", "number"),
        ListColumn("last_consumed", "Last consumed is of", "time"),
        ListColumn("member", "Member"),
    ),
    fields=(Field("group", "Consumer group"), Field("topic", "Topic")),
    page=_queues,
    is_in_menu=False,
)


def _brokers(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    with sources.client() as client:
        facts = client.cluster_facts()
    rows = [_broker_row(each) for each in (*facts.brokers, *facts.slaves)]
    rows = [row for row in rows if wanted.agrees("away", row["failure"])]
    page, after = part_of(rows, wanted.cursor, wanted.limit)
    away = tuple(
        f"the name servers know different masters of {name}: {', '.join(sorted(some))}"
        for name, some in facts.rivals.items()
    )
    return ListPage(page, after, away)


def _broker_row(facts: BrokerFacts) -> dict[str, Any]:
    runtime = facts.runtime
    ahead = facts.clock_ahead
    return {
        "broker": facts.name,
        "role": "slave" if facts.broker_id else "master",
        "broker_id": facts.broker_id,
        "address": facts.address,
        "state": "failed" if facts.failure else "ok",
        "version": runtime.get("brokerVersionDesc", ""),
        "clock": None if ahead is None else f"{ahead:+.3f} s",
        "failure": facts.failure,
        "runtime": runtime,
    }


BROKERS = RowList(
    name="brokers",
    title="Brokers",
    summary="Masters and slaves that the name servers know.",
    empty="No broker matches. Without a condition: the name servers know none; start one.",
    columns=(
        ListColumn("broker", "Broker"),
        ListColumn("role", "Role"),
        ListColumn("address", "Address"),
        ListColumn("state", "State", "state"),
        ListColumn("version", "Version"),
        ListColumn("clock", "Clock ahead"),
        ListColumn("failure", "Why it does not answer"),
    ),
    fields=(Field("away", "Does not answer", "flag"),),
    page=_brokers,
)


def _periodic(sources: ConsoleSources, wanted: WantedPage) -> ListPage:
    rows = [
        asdict(each)
        for each in sources.mq.periodic_messages()
        if wanted.text("name") in each.name and wanted.agrees("failing", each.failures)
    ]
    page, after = part_of(rows, wanted.cursor, wanted.limit)
    return ListPage(page, after)


PERIODIC = RowList(
    name="periodic",
    title="Periodic",
    summary="Periodic messages with their next and last ticks.",
    empty="No periodic message matches. An application declares one with mq.periodic.",
    columns=(
        ListColumn("name", "Name"),
        ListColumn("schedule", "Schedule"),
        ListColumn("topic", "Topic"),
        ListColumn("next_tick", "Next tick", "time"),
        ListColumn("last_tick", "Last tick", "time"),
        ListColumn("message_id", "Its message", "message"),
        ListColumn("fired", "Ticks", "number"),
        ListColumn("failures", "Failures", "number"),
        ListColumn("note", "Last error"),
    ),
    fields=(Field("name", "Name holds"), Field("failing", "Its tick fails", "flag")),
    page=_periodic,
)
