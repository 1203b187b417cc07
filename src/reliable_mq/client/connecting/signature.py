"""Signs requests for clusters with access control.

The signature is an HMAC-SHA1 over the values of all fields, in the order of their names, and the
body; so it is made last. Source: Apache RocketMQ `AclClientRPCHook`, `AclUtils`, `AclSigner`.
"""

import hmac
from base64 import b64encode

from reliable_mq.client.connecting.security import Credentials
from reliable_mq.wire.command import Command

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of a field
SIGNATURE = "Signature"


def sign(command: Command, credentials: Credentials) -> None:
    """Put the account and the signature into a request; one of an earlier try is replaced."""
    fields = command.ext_fields
    fields.pop(SIGNATURE, None)
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        fields[SECURITY_TOKEN] = credentials.security_token
    content = "".join(fields[name] for name in sorted(fields)).encode() + command.body
    digest = hmac.digest(credentials.secret_key.encode(), content, "sha1")
    fields[SIGNATURE] = b64encode(digest).decode()
