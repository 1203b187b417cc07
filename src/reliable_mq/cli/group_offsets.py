"""`reliable-mq group progress`, `reset` and `clone`: show and set the offsets of groups."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from reliable_mq.cli import admin_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.admin_options import administered, done_if_agreed, end_with
from reliable_mq.cli.printing import print_rows, time_of
from reliable_mq.cli.saying import say, say_json
from reliable_mq.client.administering.cluster_reply import ClusterReply
from reliable_mq.client.administering.offset_resets import QueueReset
from reliable_mq.client.administering.progress import GroupProgress
from reliable_mq.client.administering.thread_admin import Admin
from reliable_mq.client.administering.thread_all_progress import all_progress
from reliable_mq.errors import UsageError
from reliable_mq.message import MessageQueue
from reliable_mq.reconcile.moments import parse_moment

Group = Annotated[str, typer.Argument(help="The consumer group.")]
OptionalGroup = Annotated[
    str,
    typer.Argument(metavar="[GROUP]", help="The consumer group; default: all, one line for each."),
]
Topic = Annotated[str, typer.Argument(help="The topic.")]

QUEUES = (
    *("topic", "broker", "queue", "end", "committed", "lag", "in_flight"),
    *("last_consumed", "member"),
)
GROUPS = ("group", "members", "version", "kind", "model", "per_second", "lag")
RESETS = ("topic", "broker", "queue", "before", "after")


@options.at_cluster
def progress(
    *,
    cluster: options.Cluster,
    group: OptionalGroup = "",
    topic: Annotated[str, typer.Option(help="Only in this topic.")] = "",
    members: Annotated[
        bool, typer.Option("--members", help="Ask each member which queues it has.")
    ] = False,
    as_json: printing.AsJson = False,
) -> None:
    """Show a group's progress in each queue; without a group, the progress of all groups."""
    if not group and (topic or members):
        raise UsageError("--topic and --members need a group: give its name")
    with administered(cluster) as admin:
        if not group:
            _print_all(admin, as_json=as_json)
            return
        answers = admin.offsets.progress(group, topic)
        failures = dict(answers.failures)
        owners: dict[MessageQueue, str] = {}
        if members:
            states = admin.groups.members(group)
            owners = {row.queue: each.client_id for each in states.value for row in each.queues}
            failures |= states.failures
    rows = queue_rows(answers.value, owners)
    if as_json:
        sums = {name: getattr(answers.value, name) for name in ("lag", "in_flight", "per_second")}
        say_json({"queues": rows, **sums})
    elif rows or not failures:  # a broker that does not answer may have offsets
        none = f"group {group} has no offsets" + (f" in topic {topic}" if topic else "")
        print_rows(rows, QUEUES if members else QUEUES[:-1], none=none)
        say(
            f"lag {answers.value.lag}, in flight {answers.value.in_flight},"
            f" {answers.value.per_second:.2f} message(s) a second in the last minute"
        )
    end_with(failures)


def queue_rows(found: GroupProgress, owners: Mapping[MessageQueue, str]) -> list[dict[str, Any]]:
    """Return a row for each queue of a group; `owners`: the members that have them."""
    return [
        {
            "topic": row.queue.topic,
            "broker": row.queue.broker_name,
            "queue": row.queue.queue_id,
            "end": row.end,
            "committed": row.committed,
            "lag": row.lag,
            "in_flight": row.in_flight,
            "last_consumed": time_of(row.last_consumed_ms),
            "member": owners.get(row.queue, ""),
        }
        for row in found.queues
    ]


def _print_all(admin: Admin, *, as_json: bool) -> None:
    answers = all_progress(admin)
    rows = [msgspec.structs.asdict(each) for each in answers.value]
    for row in rows:
        row["version"] = list(row["version"]) if as_json else ", ".join(row["version"])
    print_rows(rows, GROUPS, as_json=as_json, none="there are no consumer groups")
    end_with(answers.failures)


@options.at_cluster
def reset(
    *,
    cluster: options.Cluster,
    group: Group,
    topic: Topic,
    to_time: Annotated[
        str, typer.Option(help="Read messages stored since: ISO time (UTC), or -1h.")
    ] = "",
    to_start: Annotated[
        bool, typer.Option("--to-start", help="Read all stored messages again.")
    ] = False,
    to_end: Annotated[bool, typer.Option("--to-end", help="Skip all stored messages.")] = False,
    to_offset: Annotated[
        int | None,
        typer.Option(
            min=0, help="Read one queue from this offset; needs --broker-name and --queue."
        ),
    ] = None,
    broker_name: Annotated[
        str, typer.Option(metavar="NAME", help="The broker, with --to-offset.")
    ] = "",
    queue: Annotated[int | None, typer.Option(min=0, help="The queue, with --to-offset.")] = None,
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    as_json: printing.AsJson = False,
) -> None:
    """Let a group read a topic from a time, an offset, its start or its end.

    Messages that its consume log knows as consumed have no effect again.
    """
    if bool(to_time) + to_start + to_end + (to_offset is not None) != 1:
        raise UsageError("give one of --to-time, --to-start, --to-end and --to-offset")
    if (to_offset is not None) != bool(broker_name) or bool(broker_name) != (queue is not None):
        raise UsageError("--to-offset needs --broker-name and --queue: give all three or none")
    moment = parse_moment(to_time, "--to-time", datetime.now(UTC)) if to_time else None

    def set_offsets(admin: Admin, *, dry_run: bool) -> ClusterReply[list[QueueReset]]:
        offsets = admin.offsets
        if to_offset is not None and queue is not None:
            place = MessageQueue(topic, broker_name, queue)
            return ClusterReply([offsets.reset_to_offset(group, place, to_offset, dry_run=dry_run)])
        if moment is not None:
            return offsets.reset_to_time(group, topic, moment, dry_run=dry_run)
        if to_start:
            return offsets.reset_to_start(group, topic, dry_run=dry_run)
        return offsets.reset_to_end(group, topic, dry_run=dry_run)

    with administered(cluster) as admin:
        answers = done_if_agreed(
            partial(set_offsets, admin),
            lambda resets: f"reset group {group} in {len(resets)} queue(s) of {topic}?",
            dry_run=dry_run,
            yes=yes,
        )
    _print_resets(answers, dry_run=dry_run, as_json=as_json)


@options.at_cluster
def clone(
    *,
    cluster: options.Cluster,
    source: Annotated[str, typer.Argument(help="The consumer group to copy from.")],
    target: Annotated[str, typer.Argument(help="The group that gets these offsets.")],
    topic: Annotated[
        str, typer.Option(help="Only in this topic; default: in all topics that SOURCE reads.")
    ] = "",
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    as_json: printing.AsJson = False,
) -> None:
    """Copy the offsets of a group to another group."""
    with administered(cluster) as admin:
        answers = done_if_agreed(
            partial(admin.offsets.clone, source, target, topic),
            lambda resets: f"set group {target} in {len(resets)} queue(s) as {source}?",
            dry_run=dry_run,
            yes=yes,
        )
    _print_resets(answers, dry_run=dry_run, as_json=as_json)


def _print_resets(answers: ClusterReply[list[QueueReset]], *, dry_run: bool, as_json: bool) -> None:
    rows: Sequence[dict[str, Any]] = [
        {
            "topic": row.queue.topic,
            "broker": row.queue.broker_name,
            "queue": row.queue.queue_id,
            "before": row.before,
            "after": row.after,
        }
        for row in answers.value
    ]
    print_rows(rows, RESETS, as_json=as_json, none="no queue has another offset")
    if not as_json:
        say(f"{len(rows)} queue(s) {'would be ' if dry_run else ''}set")
    end_with(answers.failures)
