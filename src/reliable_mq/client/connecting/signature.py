"""Signs requests for clusters with access control, with a client's credentials."""

from reliable_mq.client.connecting.security import Credentials
from reliable_mq.wire.command import Command
from reliable_mq.wire.request_signature import add_signature


def sign(command: Command, credentials: Credentials) -> None:
    """Add the account and the signature to a request; replace those of an earlier attempt."""
    account = credentials.access_key, credentials.secret_key, credentials.security_token
    add_signature(command, *account)
