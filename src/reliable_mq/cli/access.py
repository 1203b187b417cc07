"""`reliable-mq access`: users and policies of brokers; accounts of Apache RocketMQ 4.x."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from reliable_mq.access.plain_acl import plain_accounts
from reliable_mq.access.policies import Action, Effect, PolicyType, acl_of
from reliable_mq.access.users import AccessRefused
from reliable_mq.cli import admin_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.admin_options import administered, done_if_agreed, end_with, print_where
from reliable_mq.cli.commands import VerbCommands
from reliable_mq.cli.printing import print_rows
from reliable_mq.cli.saying import say, say_json, say_trouble
from reliable_mq.errors import ConfigurationError, ReliableMQError, UsageError
from reliable_mq.extras import extra_of

app = VerbCommands("Users and policies of brokers with access control: list, add, grant, remove.")

COLUMNS = ("user", "broker", "type", "status", "policies")
FILE_SIZE_MAX = 1024 * 1024
SECRET_VARIABLE = "RELIABLE_MQ_NEW_SECRET"  # noqa: S105 - the name of a variable
User = Annotated[str, typer.Argument(help="The user.")]


@app.command("list")
@options.at_cluster
def list_(*, cluster: options.Cluster, as_json: printing.AsJson = False) -> None:
    """List the users of each broker and their policies, without secrets."""
    with administered(cluster) as admin:
        answers = admin.accounts.all()
    rows: list[dict[str, Any]] = [
        {
            "user": account.username,
            "broker": name,
            "type": "super" if account.is_super else "normal",
            "status": "enabled" if account.is_enabled else "disabled",
            "policies": msgspec.to_builtins(account.policies)
            if as_json
            else "; ".join(
                f"{line.decision} {','.join(line.actions)} {line.resource}"
                + (f" from {','.join(line.sources)}" if line.sources else "")
                for line in account.policies
            ),
        }
        for name, listed in answers.value.items()
        for account in listed
    ]
    print_rows(rows, COLUMNS, as_json=as_json, none="there are no users")
    end_with(answers.failures)


@app.command()
@options.at_cluster
def add(
    *,
    cluster: options.Cluster,
    user: User,
    is_super: Annotated[bool, typer.Option("--super", help="The user may do everything.")] = False,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            help=f"A file with the user's secret; else {SECRET_VARIABLE}, or a question.",
            show_default=False,
        ),
    ] = None,
    broker_names: options.BrokerNames = None,
    dry_run: printing.DryRun = False,
    as_json: printing.AsJson = False,
) -> None:
    """Add a user at the masters of all brokers; a broker that has it keeps it as it is."""
    secret = _secret(user, secret_file)
    with administered(cluster) as admin:
        answers = admin.accounts.add(
            user, secret, is_super=is_super, brokers=broker_names or (), dry_run=dry_run
        )
    if answers.value or answers.failures or as_json:
        print_where(f"user {user}", "made", answers, dry_run=dry_run, as_json=as_json)
    else:
        say(f"user {user} exists already")
    end_with(answers.failures)


@app.command()
@options.at_cluster
def grant(
    *,
    cluster: options.Cluster,
    user: User,
    allow: Annotated[
        list[str] | None,
        typer.Option(metavar="RESOURCE=ACTIONS", help="Such as Topic:orders=Pub,Sub; repeatable."),
    ] = None,
    deny: Annotated[
        list[str] | None,
        typer.Option(metavar="RESOURCE=ACTIONS", help="Such as Topic:secret*=All; repeatable."),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="ADDRESS", help="Only from there; repeatable."),
    ] = None,
    broker_names: options.BrokerNames = None,
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    as_json: printing.AsJson = False,
) -> None:
    """Give a user policies at all brokers that have it; one on the same resource is replaced."""
    entries = [
        {"resource": resource, "actions": actions, "decision": effect, "sourceIps": sources}
        for effect, listed in ((Effect.ALLOW, allow), (Effect.DENY, deny))
        for resource, actions in map(_policy, listed or ())
    ]
    if not entries:
        raise UsageError("nothing to grant: give --allow RESOURCE=ACTIONS or --deny")
    policies = [{"policyType": PolicyType.CUSTOM, "entries": entries}]
    try:
        acl_of(policies)
    except AccessRefused as error:
        raise UsageError(f"a policy cannot be read: {error}") from error
    with administered(cluster) as admin:
        answers = done_if_agreed(
            partial(admin.accounts.grant, user, policies, brokers=broker_names or ()),
            lambda names: f"change policies of {user} at {', '.join(names)}?" if names else "",
            dry_run=dry_run,
            yes=yes,
        )
    print_where(f"policies of {user}", "made", answers, dry_run=dry_run, as_json=as_json)
    end_with(answers.failures)


@app.command()
@options.at_cluster
def remove(
    *,
    cluster: options.Cluster,
    user: User,
    broker_names: options.BrokerNames = None,
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    as_json: printing.AsJson = False,
) -> None:
    """Remove a user and its policies at all brokers; the last super user stays."""
    with administered(cluster) as admin:
        answers = done_if_agreed(
            partial(admin.accounts.remove, user, brokers=broker_names or ()),
            lambda names: f"remove user {user} at {', '.join(names)}?" if names else "",
            dry_run=dry_run,
            yes=yes,
        )
    print_where(f"user {user}", "removed", answers, dry_run=dry_run, as_json=as_json)
    end_with(answers.failures)


def _policy(text: str) -> tuple[str, list[str]]:
    """Return resource and actions of "Topic:orders=Pub,Sub"."""
    resource, sign, actions = text.rpartition("=")
    if not sign:
        raise UsageError(f"{text}: write RESOURCE=ACTIONS, such as Topic:orders=Pub,Sub")
    names = [name.strip() for name in actions.split(",")]
    known = {action.lower() for action in Action} - {"any", "unknown"}
    for name in names:
        if name.lower() not in known:
            raise UsageError(
                f"{text}: there is no action {name!r}; there are All, Pub, Sub, Create, Update, "
                "Delete, Get, List"
            )
    return resource.strip(), names


def _secret(user: str, file: Path | None) -> str:
    """Return the secret of a new user. No option has it: a list of processes shows options."""
    if file is not None:
        try:
            return file.read_text("utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "it is not a text in UTF-8"
            raise ConfigurationError(f"{file}: {reason}") from None
    if secret := os.environ.get(SECRET_VARIABLE, ""):
        return secret
    if sys.stdin.isatty():
        asked: str = typer.prompt(f"secret of {user}", hide_input=True, confirmation_prompt=True)
        return asked
    raise UsageError(f"no secret is given: use --secret-file FILE, or set {SECRET_VARIABLE}")


@app.command("import")
@options.at_cluster
def import_(
    *,
    cluster: options.Cluster,
    file: Annotated[Path, typer.Argument(help="plain_acl.yml of Apache RocketMQ 4.x.")],
    broker_names: options.BrokerNames = None,
    dry_run: printing.DryRun = False,
    as_json: printing.AsJson = False,
) -> None:
    """Make users and policies of the accounts in plain_acl.yml; a user that exists is skipped.

    The whole file is read first. If one account cannot be read, none is imported.
    """
    accounts, notes = plain_accounts(_read(file), file.name)
    for note in notes:
        say_trouble("warning", note)
    done: list[dict[str, Any]] = []
    failures: dict[str, ReliableMQError] = {}
    with administered(cluster) as admin:
        for account in accounts:
            answers = admin.accounts.add(
                account.username,
                account.secret,
                is_super=account.is_super,
                policies=account.policies,
                brokers=broker_names or (),
                dry_run=dry_run,
            )
            failures |= answers.failures
            done.append({"user": account.username, "brokers": answers.value, "dry_run": dry_run})
    if as_json:
        say_json(done)
    else:
        verb = "would be made" if dry_run else "made"
        for row in done:
            where = f"{verb} at {', '.join(row['brokers'])}" if row["brokers"] else "exists already"
            say(f"user {row['user']}: {where}")
    end_with(failures)


def _read(file: Path) -> Any:
    """Return the value of a YAML file.

    Raises:
        ConfigurationError: it cannot be read. The text shows no part of the file.
    """
    with extra_of("import of accounts"):
        import yaml  # noqa: PLC0415 - of the extra `yaml`
    try:
        if file.stat().st_size > FILE_SIZE_MAX:
            raise ConfigurationError(f"{file}: it is larger than 1 MiB, so it is no plain_acl.yml")
        return yaml.safe_load(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigurationError(f"{file}{where}: it is no YAML") from None
