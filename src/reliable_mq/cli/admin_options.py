"""Shared by `topic`, `group` and `message`: the cluster, and the report of failed brokers.

The account and the certificates of a secured cluster come from the application or the environment:
a list of processes does not show them. Names of topics and groups are whole names, whatever the
namespace setting says.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, NamedTuple, Protocol, TypeVar

import msgspec
import typer

from reliable_mq.cli import printing
from reliable_mq.cli.remote_words import words_of
from reliable_mq.cli.saying import say, say_json, say_trouble
from reliable_mq.cli.shared_options import (
    APPLICATION_VARIABLE,
    BROKER_VARIABLE,
    Application,
    takes_options_of,
)
from reliable_mq.client.administering.cluster_reply import ClusterReply
from reliable_mq.client.administering.thread_admin import Admin
from reliable_mq.client.configured import configured, of_environment
from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ReliableMQError, UsageError, named_setting
from reliable_mq.settings import EMBEDDED
from reliable_mq.wire.addresses import split_addresses

T = TypeVar("T")
C = TypeVar("C", bound=Collection[str])

FAILED = 1

Broker = Annotated[
    str,
    typer.Option(
        "--broker",
        metavar="HOST:PORT;…",
        help=f"Name servers; default: those of --app, or {BROKER_VARIABLE}.",
        show_default=False,
    ),
]
BrokerNames = Annotated[
    list[str] | None,
    typer.Option("--broker-name", metavar="NAME", help="Only at this broker; repeatable."),
]
Everything = Annotated[
    bool, typer.Option("--all", help="Include the names that brokers use themselves.")
]


class Cluster(NamedTuple):
    """The cluster that the options name: its name servers, and the settings to reach them."""

    name_servers: str
    client: ClientSettings


def cluster_of(*, broker: Broker = "", application: Application = "") -> Cluster:
    """Return the cluster that the options or the environment name. What is typed wins.

    Raises:
        UsageError: it is not named, it is the embedded broker of an application, or the application
            cannot be found.
        ConfigurationError: the account or the certificates cannot work.
    """
    if not application and not broker:
        application = os.environ.get(APPLICATION_VARIABLE, "")
        broker = "" if application else broker_of_environment()
    if application:
        from reliable_mq.cli.database_options import loaded  # noqa: PLC0415 - with SQLAlchemy

        settings = loaded(application).settings
        client = msgspec.structs.replace(configured(settings), namespace="")
        return Cluster(reachable(broker or settings.broker), client)
    if not broker:
        raise UsageError(
            "no cluster is named: give --broker HOST:PORT of a name server, or --app MODULE:OBJECT,"
            f" or set {BROKER_VARIABLE}"
        )
    return Cluster(reachable(broker), of_all_tenants())


at_cluster = takes_options_of(cluster_of, "cluster")
"""Adds the options of a cluster to a command; its parameter is `cluster`."""


def broker_of_environment() -> str:
    """Return the name servers that the environment names; "": none.

    Raises:
        ConfigurationError: they cannot be read; the text names the variable.
    """
    broker = os.environ.get(BROKER_VARIABLE, "")
    if broker and not broker.startswith(EMBEDDED):
        with named_setting(BROKER_VARIABLE):
            split_addresses(broker)
    return broker


def reachable(name_servers: str) -> str:
    """Return name servers that a command can reach.

    Raises:
        UsageError: they are a broker inside of an application's process.
    """
    if name_servers.startswith(EMBEDDED):
        raise UsageError(
            f"{name_servers}: this broker runs inside the application's process, so no command can "
            "reach it; start reliable-mq broker and give --broker HOST:PORT"
        )
    return name_servers


@contextmanager
def administered(cluster: Cluster) -> Iterator[Admin]:
    """Open the administration of a cluster for the block.

    Raises:
        ConfigurationError: the name servers cannot be read.
    """
    with Client(cluster.name_servers, settings=cluster.client) as client:
        yield client.admin


def of_all_tenants() -> ClientSettings:
    """Return the client settings from the environment, without its namespace.

    Raises:
        ConfigurationError: they cannot work.
    """
    return msgspec.structs.replace(of_environment(), namespace="")


def end_with(failures: Mapping[str, ReliableMQError]) -> None:
    """Name the brokers that failed on stderr and exit with 1; do nothing if all answered."""
    for name, error in failures.items():
        say_trouble("error", f"{name}: {words_of(error)}")
    if failures:
        raise typer.Exit(FAILED)


class Change(Protocol[T]):
    """A change by the administration with a dry run."""

    def __call__(self, *, dry_run: bool) -> ClusterReply[T]:
        """Do it, or return what it would do."""


def done_if_agreed(
    change: Change[T], question: Callable[[T], str], *, dry_run: bool, yes: bool
) -> ClusterReply[T]:
    """Do a change if the person at the terminal agrees, and return it; exit with 1 if not.

    Args:
        change: the change.
        question: returns the question, from the result of a dry run; "": there is nothing to do.
        dry_run: only return what would be done.
        yes: do not ask.
    """
    answers = change(dry_run=True)
    asked = question(answers.value)
    if dry_run or not asked:
        return answers
    if not printing.agreed(asked, yes=yes):
        say("nothing was changed")
        raise typer.Exit(FAILED)
    return change(dry_run=False)


def print_where(
    what: str, done: str, answers: ClusterReply[C], *, dry_run: bool, as_json: bool
) -> None:
    """Print at which brokers something was done: "topic orders made at a, b".

    Args:
        what: "topic orders".
        done: "made".
        answers: the brokers' names; its failures are not printed here.
        dry_run: nothing was done; say "would be".
        as_json: print JSON.
    """
    if as_json:
        row = {"what": what, "done": done, "brokers": list(answers.value), "dry_run": dry_run}
        say_json(row)
    elif answers.value:
        say(f"{what} {'would be ' if dry_run else ''}{done} at {', '.join(answers.value)}")
    elif not answers.failures:
        say(f"{what} already has these settings")
