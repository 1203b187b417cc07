"""Signs requests for clusters with access control.

The signature is an HMAC-SHA1 over the values of all fields, sorted by name, and the body. So it is
computed last. Source: Apache RocketMQ `AclClientRPCHook`, `AclUtils`, `AclSigner`.
"""

import hmac
from base64 import b64encode

from reliable_mq.client.connecting.security import Credentials
from reliable_mq.wire.command import Command

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of a field
SIGNATURE = "Signature"


def sign(command: Command, credentials: Credentials) -> None:
    """Add the account and the signature to a request; replace those of an earlier attempt."""
    fields = command.ext_fields
    fields.pop(SIGNATURE, None)
    fields[ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        fields[SECURITY_TOKEN] = credentials.security_token
    content = "".join(fields[name] for name in sorted(fields)).encode() + command.body
    digest = hmac.digest(credentials.secret_key.encode(), content, "sha1")
    fields[SIGNATURE] = b64encode(digest).decode()
