"""Payloads that change: a schema has a name and versions, and older payloads become newer ones.

Receives the versions that an application knows; hands on the content type that says which one a
body was written in, and a body of the newest. Refuses to guess what a version is that it does not
know: a newer one is for whoever runs newer code, one that nobody upgrades any more is invalid.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from reliable_mq.errors import UsageError, words_of
from reliable_mq.outbox.media_type import MediaType

Upgrade = Callable[[Any], Any]
"""Takes the decoded JSON of one version and returns that of the next."""

M = TypeVar("M", bound=type)

_LEGAL_NAME = re.compile(r"[0-9A-Za-z._-]{1,64}")
_VERSION_MAX = 9_999


class PayloadInvalid(Exception):
    """A body that is not what the handler asks for; trying again cannot help."""


class SchemaTooNew(UsageError):
    """A body of a version that only newer code knows; a worker that was updated can handle it."""


class Schema(msgspec.Struct, frozen=True):
    """What a class of payloads is called, and how older ones are read.

    Invariant: the upgrades lead from `oldest` to `version` without a gap.
    """

    name: str
    version: int
    upgrades: Mapping[int, Upgrade]

    def __post_init__(self) -> None:
        if not _LEGAL_NAME.fullmatch(self.name):
            raise UsageError(f"schema {self.name!r}: 1..64 of a-z A-Z 0-9 . _ - are needed")
        if not 1 <= self.version <= _VERSION_MAX:
            raise UsageError(f"schema {self.name}: version={self.version} is not 1..{_VERSION_MAX}")
        steps = list(range(self.oldest, self.version))
        if sorted(self.upgrades) != steps or self.oldest < 1:
            raise UsageError(
                f"schema {self.name}, version {self.version}: its upgrades start at "
                f"{sorted(self.upgrades)}; one for each version from the oldest on is needed"
            )

    @property
    def oldest(self) -> int:
        """The oldest version that can be read."""
        return min(self.upgrades, default=self.version)

    @property
    def content_type(self) -> str:
        """The content type of a body of the newest version."""
        return f"application/json; schema={self.name}; version={self.version}"

    def version_of(self, media: MediaType | None) -> int:
        """Return the version in which a body was written.

        One that says nothing of a schema is from before there was one, so it is version 1 where
        that is still read; else it comes from a foreign client that means the newest.

        Raises:
            PayloadInvalid: when it is of another schema, or of a version that is no longer read.
            SchemaTooNew: when it is newer than this code.
        """
        name = None if media is None else media.parameters.get("schema")
        if media is None or name is None:
            return 1 if self.oldest == 1 else self.version
        if name != self.name:
            raise PayloadInvalid(f"a message of schema {name}, wanted is {self.name}")
        said = media.parameters.get("version", "1")
        if not (said.isascii() and said.isdigit()) or len(said) > len(str(_VERSION_MAX)):
            raise PayloadInvalid(f"version {said!r} of schema {name} is no version")
        if int(said) < self.oldest:
            raise PayloadInvalid(
                f"version {said} of schema {name}: the oldest read is {self.oldest}"
            )
        if int(said) > self.version:
            raise SchemaTooNew(f"version {said} of schema {name}: this code knows {self.version}")
        return int(said)

    def upgraded(self, body: bytes, version: int) -> bytes:
        """Return a body of `version` as one of the newest version.

        Raises:
            PayloadInvalid: when it is no JSON, or an upgrade cannot do with it.
        """
        if version == self.version:
            return body
        try:
            value = msgspec.json.decode(body)
            for step in range(version, self.version):
                version = step
                value = self.upgrades[step](value)
            return msgspec.json.encode(value)
        except Exception as error:
            raise PayloadInvalid(
                f"version {version} of schema {self.name} cannot be upgraded: {words_of(error)}"
            ) from error


_schemas: dict[type, Schema] = {}


def schema(
    name: str, *, version: int = 1, upgrades: Mapping[int, Upgrade] | None = None
) -> Callable[[M], M]:
    """Give a payload's class a schema: a pydantic model, dataclass or msgspec Struct.

    Its messages say name and version in their content type. A handler that asks for the class gets
    older messages upgraded, step by step, before they are validated; a message of a newer version
    is tried again later, as a failed attempt, so that a worker with newer code may get it. One of
    another schema, or older than all upgrades, goes to the dead letters with the reason.

        @schema("order.placed", version=2, upgrades={1: lambda old: {**old, "currency": "EUR"}})
        class OrderPlaced(BaseModel): ...

    Args:
        name: what the schema is called, the same for all versions; `a-z A-Z 0-9 . _ -`.
        version: the newest version, which the class describes; from 1 on.
        upgrades: by version, a function from the decoded JSON of that version to the next one's.
            The lowest is the oldest version that is still read; none may be missing after it.

    Raises:
        UsageError: when name or version is not legal, or an upgrade is missing.
    """
    made = Schema(name, version, dict(upgrades or {}))

    def register(payload: M) -> M:
        _schemas[payload] = made
        return payload

    return register


def schema_of(kind: object) -> Schema | None:
    """Return the schema that a class of payloads was given itself, None when it has none."""
    return _schemas.get(kind) if isinstance(kind, type) else None
