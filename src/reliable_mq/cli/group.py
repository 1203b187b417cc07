"""`reliable-mq group`: list, show, create, change and delete groups; members and progress."""

from functools import partial
from typing import Annotated, Any

import msgspec
import typer

from reliable_mq.cli import admin_options as options
from reliable_mq.cli import group_offsets, printing
from reliable_mq.cli.admin_options import administered, done_if_agreed, end_with, print_where
from reliable_mq.cli.commands import VerbCommands
from reliable_mq.cli.printing import print_rows, text_of, time_of
from reliable_mq.cli.saying import say, say_json, say_lines
from reliable_mq.cli.shared_options import takes_options_of
from reliable_mq.client.administering.groups import GroupChange
from reliable_mq.client.administering.members import Connection
from reliable_mq.errors import UsageError

app = VerbCommands("List, show, create, change, reset or delete consumer groups.")
app.command()(group_offsets.progress)
app.command()(group_offsets.reset)
app.command()(group_offsets.clone)

Group = Annotated[str, typer.Argument(help="The consumer group.")]
SETTINGS = (
    *("group", "broker", "may_consume", "may_broadcast", "is_ordered"),
    *("retries_max", "retry_queues"),
)
CONNECTIONS = ("client_id", "address", "language", "version", "brokers")
HELD = ("client_id", "topic", "broker", "queue", "committed", "held", "locked", "last_consumed")


@app.command("list")
@options.at_cluster
def list_(
    *,
    cluster: options.Cluster,
    everything: options.Everything = False,
    as_json: printing.AsJson = False,
) -> None:
    """List the consumer groups with their settings at each broker."""
    with administered(cluster) as admin:
        answers = admin.groups.all_settings(everything=everything)
    rows = [
        {"group": group, "broker": name, **msgspec.structs.asdict(settings)}
        for group, by_broker in answers.value.items()
        for name, settings in by_broker.items()
    ]
    print_rows(rows, SETTINGS, as_json=as_json, none="there are no consumer groups")
    end_with(answers.failures)


@app.command()
@options.at_cluster
def show(
    *,
    cluster: options.Cluster,
    group: Group,
    as_json: printing.AsJson = False,
) -> None:
    """Show a group's settings at each broker."""
    with administered(cluster) as admin:
        answers = admin.groups.settings(group)
    rows = [
        {"group": group, "broker": name, **msgspec.structs.asdict(each)}
        for name, each in answers.value.items()
    ]
    print_rows(rows, SETTINGS, as_json=as_json, none=f"no broker has group {group}")
    end_with(answers.failures)


def group_change(
    *,
    retries: Annotated[
        int | None,
        typer.Option(min=0, help="How many retries a message has before it is a dead letter."),
    ] = None,
    retry_queues: Annotated[
        int | None, typer.Option(min=0, help="Queues of the group's retry topic; 0: no retries.")
    ] = None,
    consume: Annotated[
        bool | None,
        typer.Option(
            "--consume/--no-consume",
            help="Whether the group may consume; if not, its messages wait.",
        ),
    ] = None,
    broadcast: Annotated[
        bool | None,
        typer.Option(
            "--broadcast/--no-broadcast", help="Whether each member may read every queue."
        ),
    ] = None,
    ordered: Annotated[
        bool | None,
        typer.Option("--ordered/--unordered", help="In order or not, for 5.x clients (gRPC) only."),
    ] = None,
) -> GroupChange:
    """Return the settings from the options."""
    return GroupChange(
        retries_max=retries,
        retry_queues=retry_queues,
        may_consume=consume,
        may_broadcast=broadcast,
        is_ordered=ordered,
    )


@app.command()
@takes_options_of(group_change)
@options.at_cluster
def create(
    *,
    cluster: options.Cluster,
    group: Group,
    wanted: GroupChange,
    broker_names: options.BrokerNames = None,
    dry_run: printing.DryRun = False,
    as_json: printing.AsJson = False,
) -> None:
    """Create a group at the masters of all brokers; skip those that have it with these settings."""
    with administered(cluster) as admin:
        answers = admin.groups.create(group, wanted, brokers=broker_names or (), dry_run=dry_run)
    print_where(f"group {group}", "made", answers, dry_run=dry_run, as_json=as_json)
    end_with(answers.failures)


@app.command()
@takes_options_of(group_change)
@options.at_cluster
def update(
    *,
    cluster: options.Cluster,
    group: Group,
    wanted: GroupChange,
    broker_names: options.BrokerNames = None,
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    as_json: printing.AsJson = False,
) -> None:
    """Change a group at every broker that has it; other settings stay unchanged."""
    if wanted == GroupChange():
        raise UsageError("nothing to change: give --retries, --consume or another setting")
    with administered(cluster) as admin:
        answers = done_if_agreed(
            partial(admin.groups.update, group, wanted, brokers=broker_names or ()),
            lambda names: f"change group {group} at {', '.join(names)}?" if names else "",
            dry_run=dry_run,
            yes=yes,
        )
    print_where(f"group {group}", "changed", answers, dry_run=dry_run, as_json=as_json)
    end_with(answers.failures)


@app.command()
@options.at_cluster
def delete(
    *,
    cluster: options.Cluster,
    group: Group,
    offsets: Annotated[bool, typer.Option("--offsets", help="Delete its offsets, too.")] = False,
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    as_json: printing.AsJson = False,
) -> None:
    """Delete a group at all brokers, with its retry topic and its dead letters."""
    with administered(cluster) as admin:
        answers = done_if_agreed(
            partial(admin.groups.delete, group, offsets=offsets),
            lambda names: f"delete group {group} with its dead letters at {', '.join(names)}?",
            dry_run=dry_run,
            yes=yes,
        )
    print_where(f"group {group}", "deleted", answers, dry_run=dry_run, as_json=as_json)
    end_with(answers.failures)


@app.command()
@options.at_cluster
def connections(
    *,
    cluster: options.Cluster,
    group: Group,
    as_json: printing.AsJson = False,
) -> None:
    """List the connected members of a group, and their subscriptions."""
    with administered(cluster) as admin:
        answers = admin.groups.connections(group)
    found = answers.value
    if as_json:
        say_json(msgspec.to_builtins(found))
    elif not found.members:
        say(f"no member of group {group} is connected")
    else:
        print_rows([_connection(member) for member in found.members], CONNECTIONS)
        say(f"{found.kind}, {found.model}, {found.from_where}")
        for topic, expression in found.subscriptions.items():
            say(f"  {topic}: {expression}")
    end_with(answers.failures)


@app.command()
@options.at_cluster
def members(
    *,
    cluster: options.Cluster,
    group: Group,
    stack: Annotated[
        bool, typer.Option("--stack", help="Also show the stacks of the members' threads.")
    ] = False,
    as_json: printing.AsJson = False,
) -> None:
    """Show what each connected member of a group reports: its queues and its progress."""
    with administered(cluster) as admin:
        answers = admin.groups.members(group, stack=stack)
    if as_json:
        say_json(_with_times(msgspec.to_builtins(answers.value)))
    else:
        rows: list[dict[str, Any]] = [
            {
                "client_id": state.client_id,
                "topic": held.queue.topic,
                "broker": held.queue.broker_name,
                "queue": held.queue.queue_id,
                "committed": held.committed,
                "held": held.held,
                "locked": held.is_locked,
                "last_consumed": time_of(held.last_consume_ms or None),
            }
            for state in answers.value
            for held in state.queues
        ]
        print_rows(rows, HELD, none=f"no member of group {group} reports a queue")
        for state in answers.value:
            say(f"{state.client_id}")
            for name, value in state.properties.items():
                say(f"  {name}: {text_of(value)}")
            if state.stack:
                say_lines(state.stack)
    end_with(answers.failures)


@app.command()
@options.at_cluster
def producers(
    *,
    cluster: options.Cluster,
    group: Annotated[
        str,
        typer.Argument(
            metavar="[PRODUCER_GROUP]", help="Only of this producer group; default: all."
        ),
    ] = "",
    as_json: printing.AsJson = False,
) -> None:
    """List the connected producers."""
    with administered(cluster) as admin:
        answers = admin.groups.producers(group)
    rows = [
        {"group": name, **_connection(client)}
        for name, clients in answers.value.items()
        for client in clients
    ]
    if as_json:
        say_json(msgspec.to_builtins(answers.value))
    else:
        print_rows(rows, ("group", *CONNECTIONS), none="no producer is connected")
    end_with(answers.failures)


def _connection(client: Connection) -> dict[str, Any]:
    return {**msgspec.structs.asdict(client), "brokers": ", ".join(client.brokers)}


def _with_times(value: Any) -> Any:
    """Return a value for JSON in which times are ISO 8601: `last_pull_ms` becomes `last_pull`."""
    if isinstance(value, dict):
        return {
            name.removesuffix("_ms"): time_of(each or None)
            if name.endswith("_ms")
            else _with_times(each)
            for name, each in value.items()
        }
    return [_with_times(each) for each in value] if isinstance(value, list | tuple) else value
