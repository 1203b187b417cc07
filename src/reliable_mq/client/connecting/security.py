"""Settings for security: credentials and TLS, as values.

`signature` uses the credentials, and `file_tls` uses the TLS settings.
"""

import msgspec

from reliable_mq.client.checked import check_fields
from reliable_mq.decodable import decodable
from reliable_mq.errors import ConfigurationError
from reliable_mq.message import NamedFields


class Credentials(msgspec.Struct, frozen=True, kw_only=True, metaclass=NamedFields):
    """An account of a cluster with access control; every request is signed with the secret key.

    Attributes:
        access_key: the account's name (Apache RocketMQ: the user's).
        secret_key: its secret; never sent, never shown.
        security_token: token of a temporary account; "" for none.

    Raises:
        ConfigurationError: when one of the keys is empty, or a value is not a string.
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
class TLS(msgspec.Struct, frozen=True, kw_only=True, metaclass=NamedFields):
    """Encryption of connections to name servers and brokers.

    Attributes:
        ca: a PEM file of the trusted authorities; "" for the system's.
        cert: a PEM file of this client's certificate and its chain; "" for none.
        key: a PEM file of the certificate's key, unencrypted; "" when `cert` has it.
        hostname: the name in the peers' certificates; "" for the host of each address.
        verify: False accepts any peer; for tests only.

    Raises:
        ConfigurationError: when there is a key without a certificate, or a value has a wrong type.
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
