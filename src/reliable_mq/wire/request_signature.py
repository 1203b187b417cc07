"""The signature of a request: it proves that its sender knows a user's secret.

    field AccessKey    the user's name
    field Signature    HMAC-SHA1 of the content, in base64
    content            the values of all other fields, in the order of their names, then the body,
                       one after another without marks between them

Receives fields, a body and a secret. Returns the signature. Does not know users.
The code, the opaque and the flag of a command are not part of the content, nor are a time and the
names of fields: a captured request can be sent again, also with another code, or with the same
characters in other fields. Only TLS prevents that.
Source: Apache RocketMQ `AclClientRPCHook`, `AclUtils`, `AclSigner`,
`DefaultAuthenticationContextBuilder`.
"""

from binascii import b2a_base64
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import sha1 as any_sha1
from operator import itemgetter
from typing import cast

from reliable_mq.wire.command import Command
from reliable_mq.wire.headers import SignedSendHeader

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"  # noqa: S105 - the name of a field
SIGNATURE = "Signature"

sha1 = partial(any_sha1, usedforsecurity=False)  # HMAC-SHA1 is safe though SHA-1 is not
_BLOCK_SIZE = 64
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))

_UNIQUE_KEY_QUERY = "_UNIQUE_KEY_QUERY"
_LAST_WITHOUT_FLAG = 399  # MQVersion.V4_9_3: such clients add the flag after they have signed
_KNOWN_SHAPES = 512  # sets of names whose order is kept; real clients use about a hundred
_SHAPE_SIZE_MAX = 1_024  # characters of the names of a set that is kept

_Values = Callable[[Mapping[str, str]], tuple[str, ...]]

_known: dict[tuple[tuple[str, ...], bool], _Values] = {}


class RequestSigner:
    """Makes the signatures of one secret. The secret is hashed once; `repr` does not show it.

    HMAC is the hash of a hash (RFC 2104). Copies of two begun hashes cost a quarter less than a
    copy of Python's `hmac` object, and half of a new one.
    """

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: bytes) -> None:
        key = sha1(secret).digest() if len(secret) > _BLOCK_SIZE else secret
        padded = key.ljust(_BLOCK_SIZE, b"\0")
        self._inner = sha1(padded.translate(_INNER))
        self._outer = sha1(padded.translate(_OUTER))

    def signature(self, fields: Mapping[str, str], body: bytes, version: int) -> bytes:
        """Return the signature of a request.

        Args:
            fields: the ext fields of the request, with or without a signature.
            body: its body.
            version: the version that its sender claims.
        """
        values = _values_of(tuple(fields), version <= _LAST_WITHOUT_FLAG)(fields)
        return self.of_content("".join(values).encode("utf-8", "replace"), body)

    def digests(self, contents: Iterable[bytes]) -> list[bytes]:
        """Return the HMAC-SHA1 of each of these bytes."""
        begin, begin_outer, made = self._inner.copy, self._outer.copy, []
        for content in contents:
            inner, outer = begin(), begin_outer()
            inner.update(content)
            outer.update(inner.digest())
            made.append(outer.digest())
        return made

    def of_content(self, content: bytes, more: bytes = b"") -> bytes:
        """Return the signature of bytes, one after the other: HMAC-SHA1 in base64."""
        inner, outer = self._inner.copy(), self._outer.copy()
        inner.update(content)
        inner.update(more)
        outer.update(inner.digest())
        return b2a_base64(outer.digest(), newline=False)


_WRITTEN = {None: "", True: "true", False: "false"}


def content_of_send(header: SignedSendHeader) -> bytes:
    """Return what is signed of the fields of a send, if its sender writes numbers as Java does."""
    retries, retries_max = header.reconsume_times, header.max_reconsume_times
    return (
        f"{header.access_key}{header.producer_group}{header.topic}{header.default_topic}"
        f"{header.default_topic_queue_nums}{header.queue_id}{header.sys_flag}"
        f"{header.born_timestamp}{header.flag}{header.properties or ''}"
        f"{'' if retries is None else retries}{_WRITTEN[header.unit_mode]}"
        f"{'' if retries_max is None else retries_max}{_WRITTEN[header.batch]}"
        f"{header.broker_name or ''}"
    ).encode()


def _values_of(names: tuple[str, ...], is_without_flag: bool) -> _Values:
    """Return a function that takes the signed values from fields with these names, in order.

    It is kept, unless the names are longer than those of any real request: a sender chooses them
    before it has proved who it is.
    """
    found = _known.get((names, is_without_flag))
    if found is None:
        found = _made_values_of(names, is_without_flag)
        if sum(map(len, names)) <= _SHAPE_SIZE_MAX:
            if len(_known) >= _KNOWN_SHAPES:
                _known.clear()
            _known[names, is_without_flag] = found
    return found


def signed_fields(fields: Mapping[str, str], version: int) -> dict[str, str]:
    """Return the fields of a request that are signed, in the order in which they are."""
    names = _signed_names(fields, is_without_flag=version <= _LAST_WITHOUT_FLAG)
    return {name: fields[name] for name in names}


def _signed_names(names: Iterable[str], *, is_without_flag: bool) -> list[str]:
    left_out = {SIGNATURE, _UNIQUE_KEY_QUERY} if is_without_flag else {SIGNATURE}
    # Java compares UTF-16 units.
    return sorted(
        (name for name in names if name not in left_out),
        key=lambda name: name.encode("utf-16-be", "surrogatepass"),
    )


def _made_values_of(names: tuple[str, ...], is_without_flag: bool) -> _Values:
    kept = _signed_names(names, is_without_flag=is_without_flag)
    if len(kept) > 1:
        return cast("_Values", itemgetter(*kept))
    return lambda fields: tuple(fields[name] for name in kept)


def add_signature(command: Command, access_key: str, secret: str, security_token: str = "") -> None:
    """Add the user and the signature to a request; replace those of an earlier attempt.

    It is called last: the signature covers all fields and the body.

    Args:
        command: the request; its ext fields change.
        access_key: the user's name.
        secret: the user's secret.
        security_token: the token of a temporary account. Default "": none.
    """
    sign_as(command, RequestSigner(secret.encode()), access_key, security_token)


def sign_as(
    command: Command, signer: RequestSigner, access_key: str, security_token: str = ""
) -> None:
    """Do what `add_signature` does, with the secret of a signer."""
    fields = command.ext_fields
    fields.pop(SIGNATURE, None)
    fields[ACCESS_KEY] = access_key
    if security_token:
        fields[SECURITY_TOKEN] = security_token
    fields[SIGNATURE] = signer.signature(fields, command.body, command.version).decode()
