"""What `topic`, `group` and `message` share: which cluster, what is told of brokers that failed.

The account and the certificates of a cluster that is closed come from the environment, where no
list of processes shows them. Topics and groups are named in full, whatever namespace it says.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Protocol, TypeVar

import msgspec
import typer

from reliable_mq.cli import printing
from reliable_mq.cli.saying import say, say_json
from reliable_mq.cli.shared_options import BROKER_VARIABLE
from reliable_mq.client.administering.cluster_reply import ClusterReply
from reliable_mq.client.administering.thread_admin import Admin
from reliable_mq.client.configured import of_environment
from reliable_mq.client.settings import ClientSettings
from reliable_mq.client.thread_client import Client
from reliable_mq.errors import ReliableMQError, UsageError
from reliable_mq.settings import EMBEDDED

T = TypeVar("T")
C = TypeVar("C", bound=Collection[str])

FAILED = 1

Broker = Annotated[
    str, typer.Option("--broker", envvar=BROKER_VARIABLE, help="Name servers HOST:PORT;….")
]
At = Annotated[
    list[str] | None,
    typer.Option("--at", metavar="BROKER_NAME", help="Only at this broker; repeatable."),
]
Everything = Annotated[bool, typer.Option("--all", help="Also those of the brokers themselves.")]


@contextmanager
def administered(broker: str) -> Iterator[Admin]:
    """Give the administration of the cluster that `--broker` names.

    Raises:
        UsageError: when it names none, or the broker inside of an application.
        ConfigurationError: when it does not read, or the environment's account or certificates.
    """
    if not broker:
        raise UsageError(
            f"where is the cluster? give --broker HOST:PORT of a name server, or {BROKER_VARIABLE}"
        )
    if broker.startswith(EMBEDDED):
        raise UsageError("the broker runs inside the application's process, which nobody can ask")
    with Client(broker, settings=of_all_tenants()) as client:
        yield client.admin


def of_all_tenants() -> ClientSettings:
    """Return the client's settings of the environment, without its namespace.

    Raises:
        ConfigurationError: when they cannot work.
    """
    return msgspec.structs.replace(of_environment(), namespace="")


def end_with(failures: Mapping[str, ReliableMQError]) -> None:
    """Name on stderr who did not answer, and exit with 1; do nothing when all did."""
    for name, error in failures.items():
        say(f"error: {name}: {' '.join(str(error).split())}", err=True)
    if failures:
        raise typer.Exit(FAILED)


class Change(Protocol[T]):
    """A verb of the administration that can tell what it would do."""

    def __call__(self, *, dry_run: bool) -> ClusterReply[T]:
        """Do it, or tell what it would do."""


def done_if_agreed(
    change: Change[T], question: Callable[[T], str], *, dry_run: bool, yes: bool
) -> ClusterReply[T]:
    """Do what a person at a terminal agrees to, and return it; exit with 1 when the answer is no.

    Args:
        change: what is done.
        question: asks for it, by what a dry run tells; "" when there is nothing to be done.
        dry_run: only tell.
        yes: agree without being asked.
    """
    told = change(dry_run=True)
    asked = question(told.value)
    if dry_run or not asked:
        return told
    if not printing.agreed(asked, yes=yes):
        say("nothing was changed")
        raise typer.Exit(FAILED)
    return change(dry_run=False)


def tell_where(
    what: str, done: str, told: ClusterReply[C], *, dry_run: bool, as_json: bool
) -> None:
    """Print at which brokers something was done: "topic orders made at a, b".

    Args:
        what: "topic orders".
        done: "made".
        told: their names; and where it failed, which is not told here.
        dry_run: nothing was done, it would be.
        as_json: print JSON.
    """
    if as_json:
        row = {"what": what, "done": done, "brokers": list(told.value), "dry_run": dry_run}
        say_json(row)
    elif told.value:
        say(f"{what} {'would be ' if dry_run else ''}{done} at {', '.join(told.value)}")
    elif not told.failures:
        say(f"{what} is as it is wanted")
