"""Who we are to a cluster, and how we know that it is the one: credentials and TLS, as values.

Receives what an application configures; `signature` and `file_tls` make use of it.
"""

import msgspec

from reliable_mq.client.checked import check_fields
from reliable_mq.decodable import decodable
from reliable_mq.errors import ConfigurationError


class Credentials(msgspec.Struct, frozen=True, kw_only=True):
    """An account of a cluster with access control; every request is signed with the secret.

    Attributes:
        access_key: the account's name (Apache RocketMQ: the user's).
        secret_key: its secret; never sent, never shown.
        security_token: of a temporary account; "" for none.

    Raises:
        ConfigurationError: when one of the keys is empty, or anything is no text.
    """

    access_key: str
    secret_key: str
    security_token: str = ""

    def __post_init__(self) -> None:
        check_fields(self)
        if not self.access_key or not self.secret_key:
            raise ConfigurationError("credentials need an access_key and a secret_key")

    def __repr__(self) -> str:
        return f"Credentials(access_key={self.access_key!r})"


@decodable
class TLS(msgspec.Struct, frozen=True, kw_only=True):
    """How connections are encrypted, to name servers and to brokers.

    Attributes:
        ca: a PEM file of the authorities to trust; "" for the system's.
        cert: a PEM file of this client's certificate and its chain; "" for none.
        key: a PEM file of the certificate's key, unencrypted; "" when `cert` holds it.
        hostname: the name that certificates must bear; "" for the host of each address.
        verify: False trusts anybody who answers, for tests.

    Raises:
        ConfigurationError: when there is a key without a certificate, or a value is of a wrong
            type.
    """

    ca: str = ""
    cert: str = ""
    key: str = ""
    hostname: str = ""
    verify: bool = True

    def __post_init__(self) -> None:
        check_fields(self)
        if self.key and not self.cert:
            raise ConfigurationError("tls has a key and no cert: give the certificate, too")
