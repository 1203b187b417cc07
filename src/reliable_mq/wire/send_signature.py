"""The signatures of sends that look alike: what is signed is joined from known parts.

Receives what a shape knows of a send, and the values at its places. Returns whether signatures are
right. Does not know users: who has which secret is asked at each send.
"""

import hmac
import re
from binascii import b2a_base64
from collections.abc import Iterator, Sequence
from itertools import repeat

from reliable_mq.wire.command import Command
from reliable_mq.wire.frame import JSON, Frame
from reliable_mq.wire.request_signature import (
    ACCESS_KEY,
    SIGNATURE,
    RequestSigner,
    signed_fields,
)

LETTERS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz+/"
"""Of base64."""
_DIGITS = rb"([0-9A-Za-z+/]{27})="  # of 20 bytes
_IN_JSON = re.compile(rb'"Signature":"' + _DIGITS + b'"')
_COMPACT = re.compile(rb"\x00\x09Signature\x00\x00\x00\x1c" + _DIGITS)
_FIXED_SIZE = 9  # no field begins before it
_QUEUE_AND_TIME, _PROPERTIES = ("e", "g"), "i"

_Places = tuple[bytes, ...]
_Columns = tuple[Sequence[bytes], ...]


def signature_in(frame: Frame) -> tuple[int, int] | None:
    """Return where the signature is in the header of a send, without the = at its end."""
    pattern = _IN_JSON if frame.serialize_type == JSON else _COMPACT
    match = pattern.search(frame.header, _FIXED_SIZE)
    return None if match is None else match.span(1)


class SendSignature:
    """What is signed of the sends of a shape.

    Args:
        at: where the signature is among the values of a header.
        command: one of the sends, its fields as texts.
        before: its properties before the unique key.
        after: its properties behind the unique key.

    Attributes:
        access_key: the name of the user who is said to have signed; "": nobody.
        at: see above.
    """

    __slots__ = ("_parts", "access_key", "at")

    def __init__(self, at: int, command: Command, before: str, after: str) -> None:
        self.at, self.access_key = at, command.ext_fields.get(ACCESS_KEY, "")
        parts = [""]  # before, between and behind the queue, the time and the unique key
        for name, value in signed_fields(command.ext_fields, command.version).items():
            if name in _QUEUE_AND_TIME:
                parts.append("")
            elif name == _PROPERTIES:
                parts[-1] += before
                parts.append(after)
            else:
                parts[-1] += value
        self._parts = [part.encode("utf-8", "replace") for part in parts]

    def is_right(
        self, signer: RequestSigner, signature: bytes, places: _Places, body: bytes
    ) -> bool:
        """Whether a send has the right signature; see `are_right`."""
        queue, time, key, _opaque = places
        first, second, third, last = self._parts
        content = b"".join((first, queue, second, time, third, key, last))
        return hmac.compare_digest(signer.of_content(content, body), signature + b"=")

    def _contents(self, places: _Columns, bodies: Sequence[bytes]) -> Iterator[bytes]:
        queues, times, keys, _opaques = places
        first, second, third, last = map(repeat, self._parts)
        parts = zip(first, queues, second, times, third, keys, last, bodies)  # noqa: B905 - endless
        return map(b"".join, parts)

    def are_right(
        self,
        signer: RequestSigner,
        signatures: Sequence[bytes],
        places: _Columns,
        bodies: Sequence[bytes],
    ) -> bool:
        """Whether each of some sends has the right signature; it is compared in constant time.

        Args:
            signer: of the user who is said to have signed.
            signatures: as they came, without the = at their end.
            places: what is at the places of the sends, a column for each.
            bodies: of the sends.
        """
        digests = signer.digests(self._contents(places, bodies))
        # Base64 of a digest and a zero byte: the 27 characters of the digest alone, and an A.
        made = b2a_base64(b"\0".join((*digests, b"")), newline=False)
        return hmac.compare_digest(made, b"A".join((*signatures, b"")))

    def is_of(self, signature: bytes, places: _Columns, command: Command) -> bool:
        """Whether this reads a send as the general way does.

        Args:
            signature: the place of the signature.
            places: the other places, a column for each.
            command: the same send, its fields as texts.
        """
        fields = command.ext_fields
        said = fields.get(ACCESS_KEY, ""), fields.get(SIGNATURE, "").encode()
        content = "".join(signed_fields(fields, command.version).values())
        contents = [content.encode("utf-8", "replace")]
        is_said = said == (self.access_key, signature + b"=")
        return is_said and len(self._parts) == 4 and [*self._contents(places, [b""])] == contents
