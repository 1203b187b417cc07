"""Signature of a message: proves that its sender knows a shared secret. Signs and verifies.

    property SIGNATURE    KEY:SIGNATURE
    SIGNATURE             HMAC-SHA256 of the digest, of the properties of resends and of the trace
                          context, base64 without padding

Receives messages and keys. Returns signatures, and the reason why a message was not sent by an
application with these keys. Pure. A client that can send to a topic cannot use a message's id for
another content: its signature would not fit.

The digest is that of `message_digest.py`. A relay or scheduler adds three properties: where to
confirm, which groups have consumed it, that it is sent again. They are signed as well, because
consumers act on them. So is the trace context: `baggage` may name a tenant, say.
"""

import hmac
import re
from base64 import urlsafe_b64encode
from collections.abc import Mapping

import msgspec

from reliable_mq.errors import ConfigurationError
from reliable_mq.message import (
    CONFIRM_TO,
    CONSUMED_BY,
    RESENT,
    SIGNATURE,
    Message,
    ReceivedMessage,
)
from reliable_mq.message_digest import TRACE_NAMES, body_hash_of, digest_of, sent_properties

SECRET_LENGTH_MIN = 16
NAME_LENGTH_MAX = 32
_KEY = re.compile(rf"([0-9A-Za-z._-]{{1,{NAME_LENGTH_MAX}}}):([!-+\--~]{{{SECRET_LENGTH_MIN},}})")
_OF_RESENDS = (CONFIRM_TO, CONSUMED_BY, RESENT)


class Signer(msgspec.Struct, frozen=True):
    """Signs with the first key, and verifies signatures of any key.

    `keys`: name -> secret. `is_required`: True: messages without a signature are refused. False:
    only wrong signatures are refused.
    """

    keys: dict[str, bytes]
    is_required: bool = True

    def signed(self, message: Message) -> Message:
        """Return a message with its signature; the message must have its id."""
        own = message.properties
        sent = sent_properties(
            message.message_id,
            message.tag,
            " ".join(message.keys),
            message.ordering_key,
            "",
            own,
        )
        name, secret = next(iter(self.keys.items()))
        made = _signature(secret, message.topic, sent, message.body)
        properties = {**own, SIGNATURE: f"{name}:{made}"}
        return msgspec.structs.replace(message, properties=properties)

    def fault_of(self, message: ReceivedMessage) -> str:
        """Return why a message must have no effect; "": it may have one."""
        name, _, said = message.properties.get(SIGNATURE, "").partition(":")
        if not name and not said:
            return "it has no signature" if self.is_required else ""
        if message.fault:
            return f"its signature cannot be checked: {message.fault}"
        secret = self.keys.get(name)
        if secret is None:
            return f"its signature is by the key {name!r:.40}, which is not known here"
        made = _signature(secret, message.topic, message.properties, message.body)
        if not hmac.compare_digest(made.encode(), said.encode("utf-8", "replace")):
            return "its signature is of another message"
        return ""


def signer_of(keys: str, *, is_required: bool = True) -> Signer | None:
    """Return the signer for keys in the form of the setting: "name:secret,name:secret".

    Args:
        keys: the first one signs, all of them verify; "" for no signer.
        is_required: see `Signer`.

    Raises:
        ConfigurationError: they cannot be read. The text shows no secret.
    """
    found: dict[str, bytes] = {}
    for number, part in enumerate(keys.split(",") if keys.strip() else (), 1):
        match = _KEY.fullmatch(part.strip())
        if match is None or match[1] in found:
            raise ConfigurationError(
                f"signing_keys: key {number} must be NAME:SECRET. NAME has 1..{NAME_LENGTH_MAX} of "
                f"a-z A-Z 0-9 . _ - and is used once. SECRET has {SECRET_LENGTH_MIN} or more "
                "printable characters, without a comma or a space"
            )
        found[match[1]] = match[2].encode()
    return Signer(found, is_required) if found else None


def _signature(secret: bytes, topic: str, properties: Mapping[str, str], body: bytes) -> str:
    digest = digest_of(topic, properties, body_hash_of(body))
    beside = [properties.get(name, "") for name in _OF_RESENDS]
    if traced := TRACE_NAMES.intersection(properties):
        beside += [f"{name}\x01{properties[name]}" for name in sorted(traced) if properties[name]]
    signed = digest + "\x02".join(beside).encode("utf-8", "replace")
    made = hmac.digest(secret, signed, "sha256")
    return urlsafe_b64encode(made).rstrip(b"=").decode()
