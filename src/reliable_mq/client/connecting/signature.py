"""Signs requests for clusters with access control, with a client's credentials."""

from reliable_mq.client.connecting.security import Credentials
from reliable_mq.wire.command import Command
from reliable_mq.wire.request_signature import RequestSigner, sign_as


class Signing:
    """Signs requests with one account. The secret is hashed once, for all of them.

    Args:
        credentials: the account.

    Attributes:
        signer: makes the signatures.
    """

    __slots__ = ("_credentials", "signer")

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self.signer = RequestSigner(credentials.secret_key.encode())

    def __call__(self, command: Command) -> None:
        """Add the account and the signature to a request; replace those of an earlier attempt."""
        account = self._credentials
        sign_as(command, self.signer, account.access_key, account.security_token)
