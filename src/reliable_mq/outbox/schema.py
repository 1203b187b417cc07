"""Payload schemas: a name and versions. Older payloads are upgraded to the newest version.

Receives the versions that an application knows. Returns the content type that names a body's
version, and bodies of the newest version. Never guesses an unknown version: a newer one waits for
newer code, and a version that is no longer upgraded is invalid.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from reliable_mq.errors import UsageError, error_text
from reliable_mq.outbox.media_type import MediaType

Upgrade = Callable[[Any], Any]
"""Receives the decoded JSON of one version; returns the JSON of the next version."""

M = TypeVar("M", bound=type)

_LEGAL_NAME = re.compile(r"[0-9A-Za-z._-]{1,64}")
_VERSION_MAX = 9_999


class PayloadInvalid(Exception):
    """The body does not fit the handler's payload class; another attempt cannot help."""


class SchemaTooNew(UsageError):
    """The body has a version that only newer code knows; an updated worker can handle it."""


class Schema(msgspec.Struct, frozen=True):
    """The name of a payload class, and how to read its older versions.

    Invariant: the upgrades lead from `oldest` to `version` without a gap.
    """

    name: str
    version: int
    upgrades: Mapping[int, Upgrade]

    def __post_init__(self) -> None:
        if not _LEGAL_NAME.fullmatch(self.name):
            raise UsageError(f"schema {self.name!r}: use 1..64 characters of a-z A-Z 0-9 . _ -")
        if type(self.version) is not int:
            raise UsageError(
                f"schema {self.name}: version={self.version!r} is not 1..{_VERSION_MAX}"
            )
        if not 1 <= self.version <= _VERSION_MAX:
            raise UsageError(f"schema {self.name}: version={self.version} is not 1..{_VERSION_MAX}")
        for step, upgrade in self.upgrades.items():
            if not callable(upgrade):
                raise UsageError(
                    f"schema {self.name}: upgrades[{step!r}]={upgrade!r:.80} is no function: give "
                    "one that takes the old JSON and returns the new one"
                )
        steps = list(range(self.oldest, self.version))
        if sorted(self.upgrades) != steps or self.oldest < 1:
            raise UsageError(
                f"schema {self.name}, version {self.version}: its upgrades start at "
                f"{sorted(self.upgrades)}; give one for each version from the oldest on"
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
        """Return the version of a body.

        A body without a schema was written before there was a schema: it has version 1, if that
        version is still read. Otherwise it comes from another client, and has the newest version.

        Raises:
            PayloadInvalid: it has another schema, or a version that is no longer read.
            SchemaTooNew: its version is newer than this code.
        """
        name = None if media is None else media.parameters.get("schema")
        if media is None or name is None:
            return 1 if self.oldest == 1 else self.version
        if name != self.name:
            raise PayloadInvalid(f"the message has schema {name}, expected {self.name}")
        said = media.parameters.get("version", "1")
        if not (said.isascii() and said.isdigit()) or len(said) > len(str(_VERSION_MAX)):
            raise PayloadInvalid(f"{said!r} is not a version of schema {name}")
        if int(said) < self.oldest:
            raise PayloadInvalid(
                f"version {said} of schema {name} is too old: the oldest readable is {self.oldest}"
            )
        if int(said) > self.version:
            raise SchemaTooNew(f"version {said} of schema {name}: this code knows {self.version}")
        return int(said)

    def upgraded(self, body: bytes, version: int) -> bytes:
        """Return a body of `version` as a body of the newest version.

        Raises:
            PayloadInvalid: it is not JSON, or an upgrade fails.
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
                f"version {version} of schema {self.name} cannot be upgraded: {error_text(error)}"
            ) from error


_schemas: dict[type, Schema] = {}


def schema(
    name: str, *, version: int = 1, upgrades: Mapping[int, Upgrade] | None = None
) -> Callable[[M], M]:
    """Give a schema to a payload class: a pydantic model, dataclass or msgspec Struct.

    Its messages carry name and version in their content type. A handler that asks for the class
    gets older messages upgraded, step by step, before they are validated. A message of a newer
    version counts as a failed attempt and is tried again later: a worker with newer code may get
    it. A message of another schema, or older than all upgrades, becomes a dead letter.

        @schema("order.placed", version=2, upgrades={1: lambda old: {**old, "currency": "EUR"}})
        class OrderPlaced(BaseModel): ...

    Args:
        name: the schema's name, the same for all versions; `a-z A-Z 0-9 . _ -`.
        version: the newest version, which the class describes; at least 1. Default 1.
        upgrades: by version, a function from the decoded JSON of that version to the next one's.
            The lowest is the oldest version that is still read; none after it may be missing.

    Raises:
        UsageError: name or version is not legal, or an upgrade is missing.
    """
    if not isinstance(name, str):
        raise UsageError('@schema needs a name: write @schema("order.placed", version=1)')
    made = Schema(name, version, dict(upgrades or {}))

    def register(payload: M) -> M:
        _schemas[payload] = made
        return payload

    return register


def schema_of(kind: object) -> Schema | None:
    """Return the schema that was given to this payload class itself; None: it has none."""
    return _schemas.get(kind) if isinstance(kind, type) else None
