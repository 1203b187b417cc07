"""`reliable-mq dlq`: dead letters, and how they come to their consumer group again."""

import json
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import typer

from reliable_mq.app.sql_database import Database
from reliable_mq.app.thread_upkeep import actor
from reliable_mq.cli import database_options as options
from reliable_mq.cli.database_options import moment_of, opened, print_rows, text_of
from reliable_mq.cli.filter_options import takes_filter
from reliable_mq.client.settling import DEAD_LETTER_REASON
from reliable_mq.client.subscription import DEAD_LETTER_PREFIX
from reliable_mq.client.thread_browser import Browser
from reliable_mq.errors import ReliableMQError, UsageError
from reliable_mq.message import ReceivedMessage
from reliable_mq.outbox.sql_tables import DEFAULT_PREFIX
from reliable_mq.resend.sql_audit import SqlAudit
from reliable_mq.resend.sql_dead_letters import LetterState, SqlDeadLetters, both
from reliable_mq.settings import EMBEDDED
from reliable_mq.wire.properties import RETRY_TOPIC

AT_ONCE = 200
COLUMNS = ("message_id", "consumer_group", "topic", "key", "time", "state", "reason")

app = typer.Typer(no_args_is_help=True, help="List, show or retry dead letters.")

Group = Annotated[str, typer.Option(help="Only of this consumer group.")]
Everything = Annotated[
    bool, typer.Option("--all", help="Also those that were retried, voided or consumed since.")
]
Ids = Annotated[
    list[str] | None, typer.Argument(metavar="[MESSAGE_ID…]", help="Which; or a filter.")
]


class Letter(msgspec.Struct, frozen=True):
    """A dead letter: the newest of a message and group. `state` None: no database was asked."""

    group: str
    message: ReceivedMessage
    state: LetterState | None = None

    @property
    def topic(self) -> str:
        """The topic that the message was sent to."""
        return self.message.properties.get(RETRY_TOPIC, self.message.topic)

    @property
    def reason(self) -> str:
        """Why it was given up; empty when whoever did said nothing."""
        return self.message.properties.get(DEAD_LETTER_REASON, "")

    @property
    def time(self) -> datetime:
        """When it was given up."""
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=self.message.store_time_ms)

    @property
    def standing(self) -> str:
        """What has become of it, in a word or two."""
        state = self.state
        if state is None:
            return "unknown"
        if state.consumed is not None:
            return "consumed since"
        if state.is_voided:
            return "voided"
        if state.retried is not None and state.retried > self.time:
            return "retried since"
        return "waiting"

    def row(self) -> dict[str, Any]:
        """Return it as a table shows it."""
        return {
            "message_id": self.message.message_id,
            "consumer_group": self.group,
            "topic": self.topic,
            "key": " ".join(self.message.keys),
            "time": self.time,
            "state": self.standing,
            "reason": self.reason,
        }


class LetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Letters that fit all that is given; see the options of the same names."""

    group: str = ""
    topic: str = ""
    key: str = ""
    since: datetime | None = None
    until: datetime | None = None
    reason: str = ""

    def fits(self, letter: Letter) -> bool:
        """Say whether a letter is one of those that are meant."""
        return (
            (not self.topic or letter.topic == self.topic)
            and (not self.key or self.key in letter.message.keys)
            and (self.since is None or letter.time >= self.since)
            and (self.until is None or letter.time < self.until)
            and self.reason in letter.reason
        )


def letter_filter(
    *,
    group: Group = "",
    topic: Annotated[str, typer.Option(help="Only of messages sent to this topic.")] = "",
    key: Annotated[str, typer.Option(help="Only with this message key.")] = "",
    since: Annotated[str, typer.Option(help="Only given up since: ISO time (UTC), or -1h.")] = "",
    until: Annotated[str, typer.Option(help="Only given up before: ISO time (UTC), or -1h.")] = "",
    reason_holds: Annotated[
        str, typer.Option("--reason-holds", help="Only with this text in it.")
    ] = "",
) -> LetterFilter:
    """Return the filter that the options say.

    Raises:
        ConfigurationError: when a time does not read.
    """
    return LetterFilter(
        group=group,
        topic=topic,
        key=key,
        since=moment_of(since, "--since"),
        until=moment_of(until, "--until"),
        reason=reason_holds,
    )


@app.command("list")
@takes_filter(letter_filter)
def list_(
    *,
    wanted: LetterFilter,
    application: options.Application = "",
    db: options.Db = "",
    prefix: options.Prefix = DEFAULT_PREFIX,
    broker: options.Broker = "",
    everything: Everything = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    as_json: options.AsJson = False,
) -> None:
    """List dead letters that wait for a person, the newest first."""
    with opened(application, db, prefix, broker=broker) as (_, databases, name_servers):
        found = _found(databases, _checked(name_servers), wanted, everything=everything)
    letters = sorted(found, key=lambda each: each.time, reverse=True)[:limit]
    print_rows([each.row() for each in letters], COLUMNS, as_json=as_json)


@app.command()
def show(
    message_id: Annotated[str, typer.Argument(help="Which message.")],
    application: options.Application = "",
    db: options.Db = "",
    prefix: options.Prefix = DEFAULT_PREFIX,
    broker: options.Broker = "",
    group: Group = "",
    as_json: options.AsJson = False,
) -> None:
    """Show the dead letters of one message, with content and properties."""
    with opened(application, db, prefix, broker=broker) as (_, databases, name_servers):
        letters = _of_ids(databases, _checked(name_servers), [message_id], group)
    if not letters:
        raise UsageError(f"no consumer group has a dead letter {message_id}; see stub show")
    rows = []
    for each in letters:
        text = each.message.body.decode("utf-8", "backslashreplace")
        rows.append(
            each.row()
            | {"content": text, "properties": dict(sorted(each.message.properties.items()))}
        )
    if as_json:
        typer.echo(json.dumps(rows, default=str))
        return
    for row in rows:
        for name, value in row.items():
            typer.echo(f"{name:16} {text_of(value)}")
        typer.echo()


@app.command()
@takes_filter(letter_filter)
def retry(
    *,
    message_ids: Ids = None,
    wanted: LetterFilter,
    application: options.Application = "",
    db: options.Db = "",
    prefix: options.Prefix = DEFAULT_PREFIX,
    broker: options.Broker = "",
    everything: Everything = False,
    dry_run: options.DryRun = False,
    yes: options.Yes = False,
    note: options.Note = "",
    by: options.By = "",
    as_json: options.AsJson = False,
) -> None:
    """Let dead letters come to their consumer group again, and to no other, with new attempts.

    Given a filter, those that still wait are meant; with --all also those retried since.
    """
    is_filtered = everything or wanted != LetterFilter(group=wanted.group)
    if (message_ids and is_filtered) or not (message_ids or is_filtered or wanted.group):
        raise UsageError("give either MESSAGE_IDs or a filter such as --group or --topic")
    with opened(application, db, prefix, broker=broker) as (_, databases, name_servers):
        servers = _checked(name_servers)
        if message_ids:
            letters = _of_ids(databases, servers, message_ids, wanted.group)
            missing = set(message_ids) - {each.message.message_id for each in letters}
            if missing:
                raise UsageError(f"no dead letter: {', '.join(sorted(missing))}")
        else:
            letters = _found(databases, servers, wanted, everything=everything)
        letters = [each for each in letters if each.standing != "consumed since"]
        if dry_run:
            _preview(letters, as_json=as_json)
            return
        done: dict[str, bool] = {}
        if letters and options.agreed(f"retry {len(letters)} dead letter(s)?", yes=yes):
            done = _retried(databases, servers, letters, by or actor(), note)
    _tell(done, as_json=as_json)


def _checked(name_servers: str) -> str:
    if not name_servers:
        raise UsageError("dead letters lie at the broker: give --app, or --broker HOST:PORT")
    if name_servers.startswith(EMBEDDED):
        raise UsageError("the broker runs inside the application's process, which nobody can ask")
    return name_servers


def _found(
    databases: Mapping[str, Database], name_servers: str, wanted: LetterFilter, *, everything: bool
) -> list[Letter]:
    """Return the letters that a filter means, the newest of each message and group."""
    with Browser(name_servers) as browser:
        groups = [wanted.group] if wanted.group else browser.dead_letter_groups()
        since_ms = int(wanted.since.timestamp() * 1000) if wanted.since else 0
        letters = [
            letter
            for group in groups
            for letter in _newest(
                Letter(group, msgspec.structs.replace(message, body=b""))
                for message in browser.messages(DEAD_LETTER_PREFIX + group, since_ms)
            )
            if wanted.fits(letter)
        ]
    known = _with_states(databases, letters)
    return known if everything else [each for each in known if each.standing == "waiting"]


def _of_ids(
    databases: Mapping[str, Database], name_servers: str, message_ids: Sequence[str], group: str
) -> list[Letter]:
    """Return the newest letter of each message, of one group or of all that have one."""
    with Browser(name_servers) as browser:
        groups = [group] if group else browser.dead_letter_groups()
        found = [
            Letter(each, message)
            for each in groups
            for message_id in message_ids
            for message in browser.find(DEAD_LETTER_PREFIX + each, message_id)
        ]
    return _with_states(databases, list(_newest(found)))


def _newest(letters: Iterator[Letter] | Sequence[Letter]) -> Iterator[Letter]:
    newest: dict[tuple[str, str], Letter] = {}
    for letter in letters:
        key = (letter.group, letter.message.message_id)
        if key not in newest or newest[key].time <= letter.time:
            newest[key] = letter
    yield from newest.values()


def _book(database: Database) -> SqlDeadLetters:
    audit = SqlAudit(database.audit)
    return SqlDeadLetters(
        database.stubs, database.logs, database.escalating(), audit, database.dialect
    )


def _parts(letters: Sequence[Letter]) -> Iterator[tuple[str, list[Letter]]]:
    """Yield letters by consumer group, a few hundred at a time."""
    by_group: dict[str, list[Letter]] = defaultdict(list)
    for letter in letters:
        by_group[letter.group].append(letter)
    for group, own in by_group.items():
        for at in range(0, len(own), AT_ONCE):
            yield group, own[at : at + AT_ONCE]


def _with_states(databases: Mapping[str, Database], letters: Sequence[Letter]) -> list[Letter]:
    """Return the letters with what is known of them; in one database at most is their log."""
    known = []
    for group, some in _parts(letters):
        ids = [each.message.message_id for each in some]
        states = [_states(each, group, ids) for each in databases.values()]
        known += [
            msgspec.structs.replace(
                each, state=both([one[each.message.message_id] for one in states])
            )
            for each in some
        ]
    return known


def _states(database: Database, group: str, ids: Sequence[str]) -> dict[str, LetterState]:
    with database.engine.begin() as connection:
        return _book(database).states(connection, group, ids)


def _preview(letters: Sequence[Letter], *, as_json: bool) -> None:
    rows = [each.row() for each in letters]
    if as_json:
        typer.echo(json.dumps({"total": len(rows), "first": rows[:50]}, default=str))
        return
    print_rows(rows[:50], COLUMNS)
    typer.echo(f"{len(rows)} dead letter(s) would be retried")


def _retried(
    databases: Mapping[str, Database],
    name_servers: str,
    letters: Sequence[Letter],
    who: str,
    why: str,
) -> dict[str, bool]:
    """Retry letters; return for each "group message id" whether the broker handed it over."""
    books = {name: _book(each) for name, each in databases.items()}
    outcome: dict[str, bool] = {}
    with Browser(name_servers) as browser:
        for group, some in _parts(letters):
            ids = [each.message.message_id for each in some]
            retry_id = os.urandom(16).hex()
            for name, each in databases.items():
                now = each.clock.measured_now()
                with each.engine.begin() as connection:
                    books[name].begin(
                        connection, group, ids, retry_id=retry_id, actor=who, why=why, now=now
                    )
            done = [each for each in some if _handed_back(browser, each)]
            handed = [each.message.message_id for each in done]
            for name, each in databases.items():
                now = each.clock.now()
                with each.engine.begin() as connection:
                    books[name].done(connection, group, handed, retry_id=retry_id, now=now)
            outcome |= {f"{group} {each}": each in handed for each in ids}
    return outcome


def _handed_back(browser: Browser, letter: Letter) -> bool:
    try:
        browser.hand_back(letter.group, letter.message)
    except ReliableMQError as error:
        typer.echo(f"{letter.group} {letter.message.message_id}: {error}", err=True)
        return False
    return True


def _tell(done: Mapping[str, bool], *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(done))
    else:
        for name, handed in done.items():
            typer.echo(f"{name} {'retried' if handed else 'was not handed over'}")
        typer.echo(f"{sum(done.values())} of {len(done)} dead letter(s) retried")
    if not all(done.values()):
        raise typer.Exit(1)
