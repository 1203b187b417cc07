"""`reliable-mq message`: find messages by id, key, position or time; consumes nothing."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer

from reliable_mq.cli import admin_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.admin_options import administered, end_with
from reliable_mq.cli.commands import VerbCommands
from reliable_mq.cli.printing import age_of, print_rows, text_of, time_of, window_of
from reliable_mq.cli.saying import say, say_json
from reliable_mq.client.administering.thread_admin import Admin
from reliable_mq.errors import NotFound, ReliableMQError, UsageError
from reliable_mq.message import MessageQueue, ReceivedMessage
from reliable_mq.plain_text import printable

app = VerbCommands("Find and show stored messages.")

Topic = Annotated[str, typer.Argument(help="The topic.")]
Since = Annotated[str, typer.Option(help="Only stored since: ISO time (UTC), or -1h.")]
Until = Annotated[str, typer.Option(help="Only stored before: ISO time (UTC), or -1h.")]

COLUMNS = ("message_id", "broker", "queue", "offset", "time", "age", "tag", "keys", "content")
_PREVIEW = 40


@app.command()
@options.at_cluster
def show(
    *,
    cluster: options.Cluster,
    message_id: Annotated[
        str, typer.Argument(help="An offset message id; with --topic, a message id.")
    ],
    topic: Annotated[str, typer.Option(help="Look the message id up in this topic.")] = "",
    as_json: printing.AsJson = False,
) -> None:
    """Show a message with content, properties, and the consumer groups that have finished it.

    If it was sent more than once, every copy is shown.
    """
    with administered(cluster) as admin:
        if topic:
            copies = admin.messages.by_message_id(topic, message_id)
            found, failures = copies.value, copies.failures
            if not found and not failures:
                found = _by_offset_id(admin, message_id, f"topic {topic} has no message")
        else:
            found, failures = _by_offset_id(admin, message_id, "no broker has a message"), {}
        all_answers = [admin.messages.tracks(message) for message in found]
    tracks = [{each.group: each.state for each in one.value} for one in all_answers]
    for one in all_answers:
        failures = {**failures, **one.failures}
    _print_whole(found, tracks, as_json=as_json)
    end_with(failures)


def _by_offset_id(admin: Admin, message_id: str, missing: str) -> list[ReceivedMessage]:
    try:
        return [admin.messages.by_offset_id(message_id)]
    except (NotFound, UsageError) as error:
        why = "" if missing.startswith("topic") else "; a message id is looked up with --topic"
        raise UsageError(f"{missing} {message_id}{why}") from error


@app.command()
@options.at_cluster
def find(
    *,
    cluster: options.Cluster,
    topic: Topic,
    key: Annotated[str, typer.Option(help="A message key that the sender set.")],
    since: Since = "",
    until: Until = "",
    as_json: printing.AsJson = False,
) -> None:
    """Find the messages of a topic with a key, the oldest first."""
    begin, end = window_of(since, until)
    with administered(cluster) as admin:
        all_answers = admin.messages.by_key(topic, key, since=begin, until=end)
    none = f"topic {topic} has no message with key {key}"
    _print(all_answers.value, as_json=as_json, none=none)
    end_with(all_answers.failures)


@app.command("list")
@options.at_cluster
def list_(
    *,
    cluster: options.Cluster,
    topic: Topic,
    since: Since = "",
    until: Until = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many.")] = 50,
    as_json: printing.AsJson = False,
) -> None:
    """List the messages of a topic, queue by queue, each in its order."""
    begin, end = window_of(since, until)
    failures: dict[str, ReliableMQError] = {}
    with administered(cluster) as admin:
        messages = _until_failure(admin.messages.between(topic, begin, end), failures)
        found = list(islice(messages, limit))
    _print(found, as_json=as_json, none=f"topic {topic} has no such message")
    end_with(failures)


def _until_failure(
    messages: Iterator[ReceivedMessage], failures: dict[str, ReliableMQError]
) -> Iterator[ReceivedMessage]:
    """Yield messages; note a failure that comes after some messages."""
    count = 0
    try:
        for message in messages:
            count += 1
            yield message
    except ReliableMQError as error:
        if not count:
            raise
        failures["not all"] = error


@app.command()
@options.at_cluster
def at(
    *,
    cluster: options.Cluster,
    topic: Topic,
    broker_name: Annotated[str, typer.Argument(help="The broker's name.")],
    queue: Annotated[int, typer.Argument(min=0, help="The queue's number.")],
    offset: Annotated[int, typer.Argument(min=0, help="The queue offset of the first message.")],
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many.")] = 1,
    as_json: printing.AsJson = False,
) -> None:
    """Show the messages of a queue from an offset on, with content and properties."""
    place = MessageQueue(topic, broker_name, queue)
    with administered(cluster) as admin:
        found = admin.messages.at(place, offset, limit)
    if not found:
        raise UsageError(
            f"queue {queue} of {topic} at {broker_name} has no message at offset {offset};"
            " `topic status` shows its offsets"
        )
    _print_whole(found, as_json=as_json)


def _print(
    messages: Iterable[ReceivedMessage], *, as_json: bool, none: str = "nothing was found"
) -> None:
    rows = [row_of(message) for message in messages]
    if not as_json:
        now = datetime.now(UTC)
        for row in rows:
            row["age"] = age_of(row["time"], now)
            row["keys"] = " ".join(row["keys"])
            for name in ("content", "keys", "tag", "ordering_key"):
                row[name] = printable(row[name] or "", _PREVIEW)
    print_rows(rows, COLUMNS, as_json=as_json, none=none)


def _print_whole(
    messages: Sequence[ReceivedMessage],
    tracks: Sequence[dict[str, str]] | None = None,
    *,
    as_json: bool,
) -> None:
    rows = [row_of(message) for message in messages]
    for row, groups in zip(rows, tracks or (), strict=False):
        row["groups"] = groups
    if as_json:
        say_json(rows)
        return
    for row in rows:
        row["keys"] = " ".join(row["keys"])
        for name in ("properties", "groups"):
            if name in row:
                row[name] = ", ".join(f"{each}={value}" for each, value in row[name].items())
        for name, value in row.items():
            say(f"{name:18} {text_of(value)}")
        say()


def row_of(message: ReceivedMessage) -> dict[str, Any]:
    """Return a message in the form that is printed."""
    return {
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "topic": message.topic,
        "broker": message.queue.broker_name,
        "queue": message.queue.queue_id,
        "offset": message.queue_offset,
        "time": time_of(message.store_time_ms),
        "born": time_of(message.born_time_ms),
        "tag": message.tag,
        "keys": message.keys,
        "ordering_key": message.ordering_key,
        "reconsumed": message.reconsume_times,
        "properties": dict(sorted(message.properties.items())),
        "content": message.body.decode("utf-8", "backslashreplace"),
    }
