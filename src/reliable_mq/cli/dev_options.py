"""The options of `reliable-mq dev` that say which servers it uses, and which it starts."""

from collections.abc import Mapping
from typing import Annotated, NamedTuple

import typer

from reliable_mq.cli.credentials import FORMS, credential, variable
from reliable_mq.cli.dev_environment import forget_former
from reliable_mq.errors import UsageError
from reliable_mq.settings import EMBEDDED
from reliable_mq.wire.addresses import split_addresses


class GivenServers(NamedTuple):
    """`addresses`: of running servers, by variable. `ports`: of servers to start, by name."""

    addresses: dict[str, str]
    ports: dict[str, int]


def servers_of(
    *,
    db: Annotated[
        str,
        typer.Option(
            metavar="URL",
            callback=credential,
            help=f"Use this database; default: a PostgreSQL of its own. {FORMS}",
        ),
    ] = "",
    broker: Annotated[
        str,
        typer.Option(metavar="HOST:PORT;…", help="Use this cluster; default: a broker of its own."),
    ] = "",
    redis: Annotated[
        str,
        typer.Option(
            metavar="URL",
            callback=credential,
            help=f"Use this Redis; default: a Valkey of its own. {FORMS}",
        ),
    ] = "",
    postgres_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_535,
            help="Start a PostgreSQL at this port, also if the application has an address.",
            show_default=False,
        ),
    ] = 0,
    valkey_port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_535,
            help="Start a Valkey at this port, also if the application has an address.",
            show_default=False,
        ),
    ] = 0,
) -> GivenServers:
    """Return the servers that the options or the environment name.

    Raises:
        UsageError: a server has an address and a port.
    """
    addresses = _given_addresses(db, broker, redis)
    if broker and not broker.startswith(EMBEDDED):
        split_addresses(broker)
    ports = given_ports(addresses, postgres=postgres_port, valkey=valkey_port)
    return GivenServers(addresses, ports)


def _given_addresses(db: str, broker: str, redis: str) -> dict[str, str]:
    """Return the addresses that options or variables give, by variable."""
    forget_former()
    options = {"DATABASE": db, "BROKER": broker, "REDIS": redis}
    given = {f"RELIABLE_MQ_{name}": url for name, url in options.items()}
    return {name: found for name, url in given.items() if (found := url or variable(name))}


def given_ports(addresses: Mapping[str, str], **ports: int) -> dict[str, int]:
    """Return the ports that are not 0, by server.

    Raises:
        UsageError: a server has an address, too.
    """
    names = {"postgres": "RELIABLE_MQ_DATABASE", "valkey": "RELIABLE_MQ_REDIS"}
    wanted = {server: port for server, port in ports.items() if port}
    for server in wanted:
        if names[server] in addresses:
            raise UsageError(
                f"--{server}-port starts a server, and an option or {names[server]} names another "
                "one: give one of them"
            )
    return wanted
