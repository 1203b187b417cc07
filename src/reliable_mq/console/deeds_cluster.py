"""What a person lets be done to topics and groups: pause, resume, replay from a time.

As `reliable-mq pause`, `group update --no-consume` and `group reset` do. A pause of a topic writes
its entry to the audit itself. What brokers are asked is written to that of the first database,
before they are asked.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from reliable_mq.cli.remote_words import words_of
from reliable_mq.client.administering.cluster_reply import ClusterReply
from reliable_mq.client.administering.groups import GroupChange
from reliable_mq.client.administering.offset_resets import QueueReset
from reliable_mq.client.administering.thread_admin import Admin
from reliable_mq.console.deeds import Chosen, Deed, NothingToDo, Preview, Sealed
from reliable_mq.console.known_topics import unknown_topic
from reliable_mq.console.sources import ConsoleSources
from reliable_mq.console.sql_work_audit import begin_work, end_work, is_begun
from reliable_mq.console.users import Role
from reliable_mq.console.work import Order, Outcome, Part
from reliable_mq.database.sql_types import utc_datetime
from reliable_mq.errors import ReliableMQError
from reliable_mq.limits import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX
from reliable_mq.names import check_name
from reliable_mq.reconcile.moments import parse_moment

START, END = "start", "end"
_BEGUN = Part({Outcome.CHANGED: 1}, ("it was begun before: see the audit",))


def named(chosen: Chosen, kind: str) -> str:
    """Return the topic or the group that a form names.

    Raises:
        NothingToDo: none is named.
        ConfigurationError: the name is not legal.
    """
    name = chosen.more.get(kind, "").strip()
    if not name:
        raise NothingToDo(f"no {kind} is named")
    check_name(kind, name, TOPIC_LENGTH_MAX if kind == "topic" else GROUP_LENGTH_MAX)
    return name


def named_at_brokers(sources: ConsoleSources, chosen: Chosen, kind: str) -> str:
    """Return the name at brokers of the topic or group that a form names.

    Raises the same errors as `named`.
    """
    return sources.typed_name(named(chosen, kind))


def _own_topic(sources: ConsoleSources, chosen: Chosen) -> str:
    return sources.own_name(named(chosen, "topic"))


def now_of(sources: ConsoleSources) -> datetime:
    """Return the time by the clock of the first database, which has the audit of what is done."""
    return utc_datetime(next(iter(sources.databases.values())).clock.measured_now())


def one_part(
    sources: ConsoleSources,
    sealed: Sealed,
    order: Order,
    action: str,
    act: Callable[[], tuple[dict[str, Any], Mapping[str, ReliableMQError]]],
) -> Part:
    """Do one thing, between the two writes of its entry in the audit.

    Args:
        sources: the databases.
        sealed: the preview.
        order: the order.
        action: its name in the audit.
        act: does it; returns what was changed, and the errors of the brokers that refused it.
    """
    database = next(iter(sources.databases.values()))
    if not begin_work(database, order, action, sealed.preview.seen_at):
        return _BEGUN
    try:
        on, failures = act()
    except ReliableMQError as error:
        end_work(database, order, {}, words_of(error))
        raise
    faults = [f"broker {name}: {words_of(error)}" for name, error in failures.items()]
    end_work(database, order, on, "; ".join(faults))
    if failures:
        raise next(iter(failures.values()))
    return Part({Outcome.DONE: 1})


def _was_begun(sources: ConsoleSources, sealed: Sealed, order: Order) -> bool:
    """Whether the audit has the order: a preview is started once, also after a restart."""
    database = next(iter(sources.databases.values()))
    with database.forgiving_engine.begin() as connection:
        return is_begun(database, connection, order, sealed.preview.seen_at)


def _until(chosen: Chosen) -> datetime | None:
    text = chosen.more.get("until", "").strip()
    return parse_moment(text, "until", datetime.now(UTC)) if text else None


def _look_pause(sources: ConsoleSources, chosen: Chosen) -> Preview:
    topic, until = _own_topic(sources, chosen), _until(chosen)
    if until is not None and until <= datetime.now(UTC):
        raise NothingToDo("the end of the pause is over already: name a time to come, or none")
    end = f"{until:%Y-%m-%d %H:%M:%S} UTC" if until else "it is resumed"
    return Preview(
        total=1,
        lines=[f"topic {topic}, until {end}"],
        happens=[
            *unknown_topic(sources, topic),
            "Schedulers send no stubs of the topic again. New messages are still sent at once.",
            "Committed stubs wait safely; nothing is lost.",
        ],
        doubles=[],
        seen_at=now_of(sources),
    )


def _pause_parts(sources: ConsoleSources, sealed: Sealed, order: Order) -> Iterator[Part]:
    chosen = sealed.chosen
    topic, until = _own_topic(sources, chosen), _until(chosen)
    if _was_begun(sources, sealed, order):
        yield _BEGUN
        return
    sources.mq.resending.pause(
        topic, until=until, note=order.why, by=order.actor, run_id=order.number
    )
    yield Part({Outcome.DONE: 1})


def _look_resume(sources: ConsoleSources, chosen: Chosen) -> Preview:
    topic = _own_topic(sources, chosen)
    gates = sources.mq.resending.topics().values()
    if not any(topic in each for each in gates):
        raise NothingToDo(f"topic {topic} is neither paused nor closed")
    return Preview(
        total=1,
        lines=[f"topic {topic}"],
        happens=["The stubs that wait for the topic are due at once."],
        doubles=[],
        seen_at=now_of(sources),
    )


def _resume_parts(sources: ConsoleSources, sealed: Sealed, order: Order) -> Iterator[Part]:
    topic = _own_topic(sources, sealed.chosen)
    if _was_begun(sources, sealed, order):
        yield _BEGUN
        return
    changed = sources.mq.resending.resume(
        topic, note=order.why, by=order.actor, run_id=order.number
    )
    yield Part({Outcome.DONE if changed else Outcome.CHANGED: 1})


def _look_group(may_consume: bool) -> Callable[[ConsoleSources, Chosen], Preview]:
    def look(sources: ConsoleSources, chosen: Chosen) -> Preview:
        group = named_at_brokers(sources, chosen, "group")
        with sources.admin() as admin:
            answers = admin.groups.settings(group)
        there = [name for name, each in answers.value.items() if each.may_consume != may_consume]
        if not there:
            state = "may consume already" if may_consume else "is paused already"
            raise NothingToDo(f"group {group} {state} at {', '.join(answers.value)}")
        happens = (
            ["Its members get messages again, from where the group was."]
            if may_consume
            else [
                "Brokers give its members no messages until it is resumed. Its messages wait.",
                "Handlers that run now go on to their end.",
            ]
        )
        away = [
            f"Broker {name} does not answer now, and may stay as it is: {words_of(error)}"
            for name, error in answers.failures.items()
        ]
        return Preview(
            total=1,
            lines=[f"group {group} at broker {', '.join(there)}"],
            happens=[*happens, *away],
            doubles=[],
            seen_at=now_of(sources),
        )

    return look


def _group_parts(may_consume: bool) -> Callable[[ConsoleSources, Sealed, Order], Iterator[Part]]:
    def parts(sources: ConsoleSources, sealed: Sealed, order: Order) -> Iterator[Part]:
        group = named_at_brokers(sources, sealed.chosen, "group")

        def act() -> tuple[dict[str, Any], Mapping[str, ReliableMQError]]:
            with sources.admin() as admin:
                done = admin.groups.update(group, GroupChange(may_consume=may_consume))
            on = {"group": group, "brokers": list(done.value)} if done.value else {}
            return on, done.failures

        action = "group resume" if may_consume else "group pause"
        yield one_part(sources, sealed, order, action, act)

    return parts


def _reset(
    admin: Admin, place: Mapping[str, str], to: str, *, dry_run: bool
) -> ClusterReply[list[QueueReset]]:
    group, topic = place["group"], place["topic"]
    if to == START:
        return admin.offsets.reset_to_start(group, topic, dry_run=dry_run)
    if to == END:
        return admin.offsets.reset_to_end(group, topic, dry_run=dry_run)
    return admin.offsets.reset_to_time(
        group, topic, parse_moment(to, "to", datetime.now(UTC)), dry_run=dry_run
    )


def _place(sources: ConsoleSources, chosen: Chosen) -> dict[str, str]:
    return {kind: named_at_brokers(sources, chosen, kind) for kind in ("group", "topic")}


def _look_reset(sources: ConsoleSources, chosen: Chosen) -> Preview:
    if not chosen.more.get("to", "").strip():
        raise NothingToDo("say from when on the group reads again: a time, start, or end")
    place = _place(sources, chosen)
    with sources.admin() as admin:
        answers = _reset(admin, place, chosen.more["to"], dry_run=True)
    if answers.failures:
        away = [f"{name}: {words_of(error)}" for name, error in answers.failures.items()]
        raise NothingToDo(f"a broker does not answer, so nothing is reset: {'; '.join(away)}")
    changed = [each for each in answers.value if each.before != each.after]
    if not changed:
        raise NothingToDo("every queue is there already")
    again = sum(max(0, each.before - each.after) for each in changed)
    skipped = sum(max(0, each.after - each.before) for each in changed)
    happens = [f"{again:,} messages come again."] if again else []
    happens += [f"{skipped:,} messages are skipped: the group never gets them."] if skipped else []
    doubles = (
        [
            "The group skips what its consume log knows as consumed.",
            "A consumer without a consume log handles each of them once more.",
            "So does one from which retention has removed the entries.",
        ]
        if again
        else []
    )
    return Preview(
        total=1,
        lines=[
            f"{each.queue.topic} at {each.queue.broker_name}, queue {each.queue.queue_id}:"
            f" from {each.before:,} to {each.after:,}"
            for each in changed
        ],
        happens=happens,
        doubles=doubles,
        seen_at=now_of(sources),
    )


def _reset_parts(sources: ConsoleSources, sealed: Sealed, order: Order) -> Iterator[Part]:
    chosen = sealed.chosen
    place = _place(sources, chosen)

    def act() -> tuple[dict[str, Any], Mapping[str, ReliableMQError]]:
        with sources.admin() as admin:
            done = _reset(admin, place, chosen.more["to"], dry_run=False)
        queues = {
            f"{each.queue.broker_name}/{each.queue.queue_id}": [each.before, each.after]
            for each in done.value
        }
        return place | {"queues": queues} if queues else {}, done.failures

    yield one_part(sources, sealed, order, "group reset", act)


PAUSE_TOPIC = Deed(
    name="topic-pause",
    title="Pause resending",
    role=Role.OPERATOR,
    of_list=None,
    look=_look_pause,
    parts=_pause_parts,
    moments=("until",),
    back="/topics?stopped=yes",
)
RESUME_TOPIC = Deed(
    name="topic-resume",
    title="Resume resending",
    role=Role.OPERATOR,
    of_list=None,
    look=_look_resume,
    parts=_resume_parts,
    back="/topics",
)
PAUSE_GROUP = Deed(
    name="group-pause",
    title="Pause the group",
    role=Role.OPERATOR,
    of_list=None,
    look=_look_group(may_consume=False),
    parts=_group_parts(may_consume=False),
    back="/groups",
)
RESUME_GROUP = Deed(
    name="group-resume",
    title="Resume the group",
    role=Role.OPERATOR,
    of_list=None,
    look=_look_group(may_consume=True),
    parts=_group_parts(may_consume=True),
    back="/groups",
)
RESET_OFFSETS = Deed(
    name="group-reset",
    title="Reset its offsets",
    role=Role.ADMIN,
    of_list=None,
    look=_look_reset,
    parts=_reset_parts,
    moments=("to",),
    is_final=True,
    back="/groups",
)
