"""`reliable-mq access`: users and policies of brokers; accounts of Apache RocketMQ 4.x."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from reliable_mq.access.plain_acl import plain_accounts
from reliable_mq.access.policies import Action, Effect, PolicyType, acl_of
from reliable_mq.access.resources import resource_of
from reliable_mq.access.users import AccessRefused
from reliable_mq.cli import admin_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.admin_options import (
    FAILED,
    Change,
    administered,
    done_if_agreed,
    end_with,
    print_where,
)
from reliable_mq.cli.commands import VerbCommands
from reliable_mq.cli.credentials import FORMS, new_secret
from reliable_mq.cli.printing import print_rows
from reliable_mq.cli.saying import say, say_json, say_trouble
from reliable_mq.client.administering.cluster_reply import ClusterReply
from reliable_mq.errors import ConfigurationError, ReliableMQError, UsageError
from reliable_mq.extras import extra_of

app = VerbCommands("Users and policies of brokers with access control.")

COLUMNS = ("user", "broker", "type", "status", "policies")
FILE_SIZE_MAX = 1024 * 1024
User = Annotated[str, typer.Argument(help="The user.")]
Secret = Annotated[
    str,
    typer.Option(
        metavar="@FILE",
        callback=new_secret,
        help=f"The user's secret: {FORMS}",
        show_default=False,
    ),
]


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
    secret: Secret = "",
    broker_names: options.BrokerNames = None,
    dry_run: printing.DryRun = False,
    as_json: printing.AsJson = False,
) -> None:
    """Add a user at the masters of all brokers; a broker that has it keeps it as it is.

    If all have it already, nothing is changed, also not its secret, and the exit code is 1.
    """
    if not secret:
        raise UsageError("no secret is given: write --secret @FILE, or --secret - to be asked")
    with administered(cluster) as admin:
        answers = admin.accounts.add(
            user, secret, is_super=is_super, brokers=broker_names or (), dry_run=dry_run
        )
    if answers.value or answers.failures or as_json:
        print_where(f"user {user}", "made", answers, dry_run=dry_run, as_json=as_json)
    end_with(answers.failures)
    if not answers.value:
        changed = f"reliable-mq access change {user} --secret @FILE"
        say_trouble("error", f"user {user} exists already and keeps its secret; use {changed}")
        raise typer.Exit(FAILED)


@app.command()
@options.at_cluster
def change(
    *,
    cluster: options.Cluster,
    user: User,
    secret: Secret = "",
    is_enabled: Annotated[
        bool | None,
        typer.Option("--enable/--disable", help="Whether the user may do anything at all."),
    ] = None,
    is_super: Annotated[
        bool | None, typer.Option("--super/--normal", help="Whether the user may do everything.")
    ] = None,
    broker_names: options.BrokerNames = None,
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    as_json: printing.AsJson = False,
) -> None:
    """Change a user at all brokers that have it; the last super user stays one."""
    if not secret and is_enabled is None and is_super is None:
        raise UsageError("nothing to change: give --secret, --disable, --enable, --super, --normal")
    with administered(cluster) as admin:
        change = partial(
            admin.accounts.change,
            user,
            secret=secret,
            is_enabled=is_enabled,
            is_super=is_super,
            brokers=broker_names or (),
        )
        answers = _asked(change, f"change user {user}", dry_run=dry_run, yes=yes)
    print_where(f"user {user}", "changed", answers, dry_run=dry_run, as_json=as_json)
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
    _check_once([resource for resource, _ in map(_policy, [*(allow or ()), *(deny or ())])])
    for source in sources or ():
        _check_policy(f"--from {source}", [{**entries[0], "sourceIps": [source]}])
    policies = _check_policy("the policies", entries)
    with administered(cluster) as admin:
        change = partial(admin.accounts.grant, user, policies, brokers=broker_names or ())
        answers = _asked(change, f"change policies of {user}", dry_run=dry_run, yes=yes)
    print_where(f"policies of {user}", "made", answers, dry_run=dry_run, as_json=as_json)
    end_with(answers.failures)


@app.command()
@options.at_cluster
def revoke(
    *,
    cluster: options.Cluster,
    user: User,
    resource: Annotated[str, typer.Argument(help="Such as Topic:orders, as it was granted.")],
    broker_names: options.BrokerNames = None,
    dry_run: printing.DryRun = False,
    yes: printing.Yes = False,
    as_json: printing.AsJson = False,
) -> None:
    """Remove a user's policy on a resource, at all brokers that have it."""
    named = resource_of(resource)
    if named is None:
        raise UsageError(f"{resource}: write a resource, such as Topic:orders or Group:pay*")
    with administered(cluster) as admin:
        change = partial(admin.accounts.revoke, user, named.key, brokers=broker_names or ())
        what = f"remove the policy of {user} on {named.key}"
        answers = _asked(change, what, dry_run=dry_run, yes=yes)
    print_where(f"policy of {user}", "removed", answers, dry_run=dry_run, as_json=as_json)
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
        change = partial(admin.accounts.remove, user, brokers=broker_names or ())
        answers = _asked(change, f"remove user {user}", dry_run=dry_run, yes=yes)
    print_where(f"user {user}", "removed", answers, dry_run=dry_run, as_json=as_json)
    end_with(answers.failures)


def _asked(
    change: Change[list[str]], what: str, *, dry_run: bool, yes: bool
) -> ClusterReply[list[str]]:
    """Make a change if the person at the terminal agrees: "remove user shop at broker-a?"."""
    return done_if_agreed(
        change,
        lambda names: f"{what} at {', '.join(names)}?" if names else "",
        dry_run=dry_run,
        yes=yes,
    )


def _check_policy(what: str, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the policies of these entries; a broker would refuse wrong ones without a name."""
    policies = [{"policyType": PolicyType.CUSTOM, "entries": entries}]
    try:
        acl_of(policies)
    except AccessRefused as error:
        raise UsageError(f"{what}: {error}") from error
    return policies


def _check_once(resources: list[str]) -> None:
    for resource in resources:
        if resources.count(resource) > 1:
            raise UsageError(
                f"{resource} is named twice: a resource has one policy, which allows or denies"
            )


def _policy(text: str) -> tuple[str, list[str]]:
    """Return resource and actions of "Topic:orders=Pub,Sub"."""
    resource, sign, actions = text.rpartition("=")
    if not sign:
        raise UsageError(f"{text}: write RESOURCE=ACTIONS, such as Topic:orders=Pub,Sub")
    if resource_of(resource.strip()) is None:
        raise UsageError(
            f"{text}: {resource.strip()!r} is no resource: write Topic:NAME, Group:NAME or "
            "Cluster:NAME, such as Topic:orders=Pub,Sub"
        )
    names = [name.strip() for name in actions.split(",")]
    known = {action.lower() for action in Action} - {"any", "unknown"}
    for name in names:
        if name.lower() not in known:
            raise UsageError(
                f"{text}: there is no action {name!r}; there are All, Pub, Sub, Create, Update, "
                "Delete, Get, List"
            )
    return resource.strip(), names


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
