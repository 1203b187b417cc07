"""Who sent a message: a signature over all that was written, made and checked with a shared secret.

    property SIGNATURE    KEY:SIGNATURE
    SIGNATURE             HMAC-SHA256 of the digest, of what resends say and of the trace context,
                          base64 without padding

Receives messages and keys; hands on signatures, and why a message is not what an application with
these keys has sent. Pure. Somebody who can send to a topic cannot take a message's id for another
content: its signature would not fit.

The digest is that of `message_digest.py`. Three properties that a relay or scheduler adds (where to
confirm, who has consumed it, that it is sent again) are signed beside it, because consumers act on
them. So is the trace context: `baggage` may name a tenant, say.
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
    """Signs by the first key, and knows a signature of any.

    `keys`: name -> secret. `is_required`: True: messages without a signature are refused. False:
    only wrong signatures are refused.
    """

    keys: dict[str, bytes]
    is_required: bool = True

    def signed(self, message: Message) -> Message:
        """Return a message with its signature; its id must be known."""
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
        """Return why a message must have no effect; "": it is what one of us sent."""
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
    """Return what signs and checks by keys as a setting has them: "name:secret,name:secret".

    Args:
        keys: the first one signs, all of them are known; "" for none.
        is_required: see `Signer`.

    Raises:
        ConfigurationError: when they do not read; no secret is told.
    """
    found: dict[str, bytes] = {}
    for number, part in enumerate(keys.split(",") if keys.strip() else (), 1):
        match = _KEY.fullmatch(part.strip())
        if match is None or match[1] in found:
            raise ConfigurationError(
                f"signing_keys: key {number} must be NAME:SECRET, the name once, of "
                f"1..{NAME_LENGTH_MAX} of a-z A-Z 0-9 . _ -, the secret of {SECRET_LENGTH_MIN} "
                "printable characters or more, without a comma or a space"
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
