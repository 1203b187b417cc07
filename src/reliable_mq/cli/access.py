"""`reliable-mq access`: users and policies of brokers; accounts of Apache RocketMQ 4.x."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from reliable_mq.access.plain_acl import plain_accounts
from reliable_mq.cli import admin_options as options
from reliable_mq.cli import printing
from reliable_mq.cli.admin_options import administered, end_with
from reliable_mq.cli.commands import VerbCommands
from reliable_mq.cli.printing import print_rows
from reliable_mq.cli.saying import say, say_json, say_trouble
from reliable_mq.errors import ConfigurationError, ReliableMQError
from reliable_mq.extras import extra_of

app = VerbCommands("List users and policies of brokers with access control; import accounts.")

COLUMNS = ("user", "broker", "type", "status", "policies")
FILE_SIZE_MAX = 1024 * 1024


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
