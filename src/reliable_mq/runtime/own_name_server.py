"""The name server in a broker's process. It has the broker's users, audit and limits.

Receives the broker's properties, and takes those of the name server's tables out of them.
"""

from collections.abc import MutableMapping
from pathlib import Path

from reliable_mq.access.access_table import AccessTable
from reliable_mq.access.guard import Guard
from reliable_mq.broker_core.config_reading import broker_config
from reliable_mq.name_server.name_server_limits import NameServerLimits
from reliable_mq.runtime.audit_file import AuditFile
from reliable_mq.runtime.connection_limits import taken
from reliable_mq.runtime.name_server import NameServer
from reliable_mq.runtime.server_connection import TurnShares
from reliable_mq.runtime.server_tls import ServerTls

_TABLES = ("maxBrokers", "maxBrokersOfConnection", "maxRegisteredTopics")


def own_name_server(
    store: Path,
    properties: MutableMapping[str, str],
    audit: AuditFile,
    tls: ServerTls,
    turns: TurnShares,
) -> NameServer:
    """Return the name server of a broker, not started yet.

    With access control, nobody changes anything until the broker has read its users and set them as
    the `guard`.

    Args:
        store: the folder of the broker's store.
        properties: of the broker; the limits of the name server's tables are removed.
        audit: the broker's.
        tls: the broker's.
        turns: of their event loop.

    Raises:
        ConfigurationError: when a property is wrong.
    """
    tables = {name: properties.pop(name) for name in _TABLES if name in properties}
    limits = taken(tables, NameServerLimits, "a limit of the name server")
    config, _ = broker_config(properties)
    return NameServer(
        store / "config" / "kvConfig.json",
        tables=limits,
        guard=Guard(config.access, AccessTable()) if config.authenticates else None,
        audit=audit,
        tls=tls,
        turns=turns,
    )
