"""Who a store is for the controller: cluster, name and number, in a file of the store.

The number is applied for once. Before, a second file has what was applied for, with a code. So an
application whose answer was lost is repeated, and gets the same number.
Source: Apache RocketMQ `BrokerMetadata`, `TempBrokerMetadata`.
"""

from typing import NamedTuple

from reliable_mq.errors import StoreError

PATH = "brokerIdentity"
APPLIED_PATH = "brokerIdentity-temp"


class Identity(NamedTuple):
    """Who a store is. `code`: of an application that is not answered yet; "": it was."""

    cluster: str
    name: str
    broker_id: int
    code: str = ""

    def dump(self) -> str:
        """Return the content of the file, as Apache's broker writes it."""
        parts = (self.cluster, self.name, str(self.broker_id), *filter(None, (self.code,)))
        return "#".join(parts)


def load_identity(text: str, path: str) -> Identity | None:
    """Return the identity in a file's content; None: there is none.

    Raises:
        StoreError: when the content is damaged.
    """
    if not text:
        return None
    parts = text.strip().split("#")
    is_whole = len(parts) == (4 if path == APPLIED_PATH else 3)
    if not is_whole or not parts[2].isdecimal() or int(parts[2]) <= 0:
        raise StoreError(
            f"{path} is damaged: restore it from a copy, or remove it and the number of this "
            "broker at the controller (`mqadmin cleanBrokerMetadata`), so that it gets another one"
        )
    return Identity(parts[0], parts[1], int(parts[2]), *parts[3:])


def check_identity(identity: Identity, cluster: str, name: str) -> None:
    """Raise unless a store is of this cluster and name.

    Raises:
        StoreError: when it belongs to another one.
    """
    if (identity.cluster, identity.name) != (cluster, name):
        raise StoreError(
            f"this store is broker {identity.broker_id} of brokerName={identity.name}, "
            f"brokerClusterName={identity.cluster} ({PATH}); the settings say brokerName={name}, "
            f"brokerClusterName={cluster}: change them back, or give this broker another store"
        )
