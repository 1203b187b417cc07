"""`reliable-mq topic`: list, show, create, change and delete topics."""

from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from reliable_mq.cli import admin_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.admin_options import administered, done_if_agreed, end_with, print_where
from reliable_mq.cli.commands import VerbCommands
from reliable_mq.cli.printing import print_names, print_rows, time_of
from reliable_mq.cli.saying import say, say_json
from reliable_mq.client.administering.topic_settings import PERMISSIONS, QUEUES, TopicChange
from reliable_mq.errors import UsageError

app = VerbCommands("List, show, create, change or delete topics.")

Topic = Annotated[str, typer.Argument(help="The topic.")]


def _permission(value: str | None) -> str | None:
    """Return a permission that people give. Brokers have more, such as the rwx of TBW102."""
    if value is not None and value not in PERMISSIONS:
        raise UsageError(f"--permission {value}: give one of {', '.join(PERMISSIONS)}")
    return value


Permission = Annotated[
    str, typer.Option(callback=_permission, help=f"One of {', '.join(PERMISSIONS)}.")
]
Attributes = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute",
        metavar="NAME=VALUE",
        help="An attribute, such as message.type=FIFO; repeatable.",
    ),
]
SETTINGS = ("broker", "read_queues", "write_queues", "permission", "is_ordered", "attributes")
PLACES = ("broker", "cluster", "addresses", "read_queues", "write_queues", "permission")
QUEUE_COLUMNS = ("broker", "queue", "first", "end", "last_stored")


@app.command("list")
@options.at_cluster
def list_(
    *,
    cluster: options.Cluster,
    everything: options.Everything = False,
    as_json: printing.AsJson = False,
) -> None:
    """List the topics of applications; with --all also those of brokers and consumer groups."""
    with administered(cluster) as admin:
        answers = admin.topics.names(everything=everything)
    print_names(answers.value, as_json=as_json, none="there are no topics of applications")
    end_with(answers.failures)


@app.command()
@options.at_cluster
def show(
    *,
    cluster: options.Cluster,
    topic: Topic,
    as_json: printing.AsJson = False,
) -> None:
    """Show a topic's settings at each broker."""
    with administered(cluster) as admin:
        answers = admin.topics.settings(topic)
    rows = [
        {"broker": name, **msgspec.structs.asdict(each)} for name, each in answers.value.items()
    ]
    if not as_json:
        for row in rows:
            pairs = row["attributes"].items()
            row["attributes"] = ", ".join(f"{name}={value}" for name, value in pairs)
    print_rows(rows, SETTINGS, as_json=as_json, none=f"no broker has topic {topic}")
    end_with(answers.failures)


@app.command()
@options.at_cluster
def route(
    *,
    cluster: options.Cluster,
    topic: Topic,
    as_json: printing.AsJson = False,
) -> None:
    """Show which brokers have a topic, as name servers answer clients."""
    with administered(cluster) as admin:
        places = admin.topics.route(topic)
    rows = [msgspec.structs.asdict(place) for place in places]
    if not as_json:
        for row in rows:
            row["addresses"] = ", ".join(f"{at}={row['addresses'][at]}" for at in row["addresses"])
    print_rows(rows, PLACES, as_json=as_json, none=f"no broker has topic {topic}")


@app.command()
@options.at_cluster
def status(
    *,
    cluster: options.Cluster,
    topic: Topic,
    as_json: printing.AsJson = False,
) -> None:
    """Show the offsets of a topic's queues, and when each last got a message."""
    with administered(cluster) as admin:
        answers = admin.topics.status(topic)
    rows: list[dict[str, Any]] = [
        {
            "broker": each.queue.broker_name,
            "queue": each.queue.queue_id,
            "first": each.first,
            "end": each.end,
            "last_stored": time_of(each.last_stored_ms),
        }
        for each in answers.value.queues
    ]
    if as_json:
        say_json({"queues": rows, "per_second": answers.value.per_second})
    else:
        print_rows(rows, QUEUE_COLUMNS, none=f"topic {topic} has no queues")
        say(f"{answers.value.per_second:.2f} message(s) a second were stored in the last minute")
    end_with(answers.failures)


@app.command()
@options.at_cluster
def consumers(
    *,
    cluster: options.Cluster,
    topic: Topic,
    as_json: printing.AsJson = False,
) -> None:
    """List the consumer groups that subscribe to a topic, or have offsets in it."""
    with administered(cluster) as admin:
        answers = admin.topics.consumers(topic)
    print_names(answers.value, as_json=as_json, none=f"no consumer group reads topic {topic}")
    end_with(answers.failures)


@app.command()
@options.at_cluster
def create(
    *,
    cluster: options.Cluster,
    topic: Topic,
    queues: Annotated[int, typer.Option(min=1, help="Queues at each broker.")] = QUEUES,
    permission: Permission = "rw",
    ordered: Annotated[
        bool, typer.Option("--ordered", help="Mark it as ordered, for Apache's tools only.")
    ] = False,
    attributes: Attributes = None,
    broker_names: options.BrokerNames = None,
    dry_run: printing.DryRun = False,
    as_json: printing.AsJson = False,
) -> None:
    """Create a topic at the masters of all brokers; skip those that have it with these settings."""
    with administered(cluster) as admin:
        answers = admin.topics.create(
            topic,
            queues,
            permission=permission,
            is_ordered=ordered,
            attributes=_pairs(attributes),
            brokers=broker_names or (),
            dry_run=dry_run,
        )
    print_where(f"topic {topic}", "made", answers, dry_run=dry_run, as_json=as_json)
    end_with(answers.failures)


@app.command()
@options.at_cluster
def update(
    *,
    cluster: options.Cluster,
    topic: Topic,
    queues: Annotated[
        int | None, typer.Option(min=1, help="Queues at each broker, to read and to write.")
    ] = None,
    read_queues: Annotated[
        int | None, typer.Option(min=0, help="Queues to read, if different.")
    ] = None,
    write_queues: Annotated[
        int | None, typer.Option(min=0, help="Queues to write, if different.")
    ] = None,
    permission: Annotated[
        str | None,
        typer.Option(callback=_permission, help=f"One of {', '.join(PERMISSIONS)}."),
    ] = None,
    ordered: Annotated[
        bool | None,
        typer.Option("--ordered/--unordered", help="Mark it as ordered, for Apache's tools only."),
    ] = None,
    attributes: Attributes = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without-attribute", metavar="NAME", help="Remove this attribute; repeatable."
        ),
    ] = None,
    broker_names: options.BrokerNames = None,
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    as_json: printing.AsJson = False,
) -> None:
    """Change a topic at every broker that has it; other settings stay unchanged."""
    change = TopicChange(
        read_queues=queues if read_queues is None else read_queues,
        write_queues=queues if write_queues is None else write_queues,
        permission=permission,
        is_ordered=ordered,
        attributes={**_pairs(attributes), **dict.fromkeys(without or ())},
    )
    if change == TopicChange():
        raise UsageError("nothing to change: give --queues, --permission or another setting")
    with administered(cluster) as admin:
        answers = done_if_agreed(
            partial(admin.topics.update, topic, change, brokers=broker_names or ()),
            lambda names: f"change topic {topic} at {', '.join(names)}?" if names else "",
            dry_run=dry_run,
            yes=yes,
        )
    print_where(f"topic {topic}", "changed", answers, dry_run=dry_run, as_json=as_json)
    end_with(answers.failures)


@app.command()
@options.at_cluster
def delete(
    *,
    cluster: options.Cluster,
    topic: Topic,
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    as_json: printing.AsJson = False,
) -> None:
    """Delete a topic at all brokers and name servers: its messages cannot be read any more."""
    with administered(cluster) as admin:
        answers = done_if_agreed(
            partial(admin.topics.delete, topic),
            lambda names: f"delete topic {topic} with its messages at {', '.join(names)}?",
            dry_run=dry_run,
            yes=yes,
        )
    print_where(f"topic {topic}", "deleted", answers, dry_run=dry_run, as_json=as_json)
    end_with(answers.failures)


def _pairs(texts: list[str] | None) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        if not (name and sign):
            raise UsageError(f"--attribute takes NAME=VALUE, not {text!r}")
        pairs[name] = value
    return pairs
