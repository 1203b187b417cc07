"""The users of a console: who they are, and what they may do.

Receives the text of a file: that of a broker's access control, or one of the console's own. Returns
users. A super user of a broker is an admin; its other users are viewers, if they are enabled.
"""

import hashlib
import hmac
import json
import re
import secrets
import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from reliable_mq.access.access_table import AccessTable
from reliable_mq.errors import ConfigurationError

SCRYPT = {"n": 2**14, "r": 8, "p": 1}
_LINE = re.compile(r"scrypt\$([0-9a-f]{32})\$([0-9a-f]{64})")
_NOBODY = "scrypt$" + "00" * 16 + "$" + "00" * 32
_ONE_AT_A_TIME = threading.Lock()
"""A hash takes 16 MiB of memory: forty people who log in at once would take 640."""


class Role(StrEnum):
    """What a user may do: look; send again and pause, too; void and reset offsets, too."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def may(self, needed: "Role") -> bool:
        """Whether this role has all that the needed one has."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


class ConsoleUser(msgspec.Struct, frozen=True, kw_only=True):
    """A user. `check` says whether a password is the user's; `secret` changes with the password."""

    name: str
    role: Role
    check: Callable[[str], bool]
    secret: str

    def __repr__(self) -> str:
        return f"ConsoleUser({self.name!r}, {self.role})"


def scrypt_line(password: str) -> str:
    """Return a password as a file of users keeps it."""
    salt = secrets.token_bytes(16)
    return f"scrypt${salt.hex()}${_scrypt(password, salt).hex()}"


def _scrypt(password: str, salt: bytes) -> bytes:
    with _ONE_AT_A_TIME:
        return hashlib.scrypt(password.encode("utf-8", "replace"), salt=salt, dklen=32, **SCRYPT)


def is_password(line: str, password: str) -> bool:
    """Return whether a password is the one of a line."""
    found = _LINE.fullmatch(line)
    if found is None:
        return False
    return hmac.compare_digest(_scrypt(password, bytes.fromhex(found[1])).hex(), found[2])


class UserFile:
    """The users of a file. It is read again when it has changed.

    Args:
        path: the file.

    Raises:
        ConfigurationError: it cannot be read; the text says what is wrong.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._users: Mapping[str, ConsoleUser] = {}
        self.users()

    def users(self) -> Mapping[str, ConsoleUser]:
        """Return the users by name.

        Raises:
            ConfigurationError: the file cannot be read.
        """
        try:
            state = self._path.stat()
            seen = (state.st_mtime_ns, state.st_size)
            if seen != self._seen:
                self._users = read_users(self._path.read_text("utf-8"))
                self._seen = seen
        except (OSError, ValueError, ConfigurationError) as error:
            raise ConfigurationError(f"--users {self._path}: {error}") from error
        return self._users

    def checked(self, name: str, password: str) -> ConsoleUser | None:
        """Return the user with this name and password; None: there is none.

        It takes equally long for a name that nobody has.
        """
        user = self.users().get(name)
        if user is None:
            is_password(_NOBODY, password)
            return None
        return user if user.check(password) else None


def read_users(text: str) -> dict[str, ConsoleUser]:
    """Return the users in the text of a file.

    Raises:
        ConfigurationError: it is neither a file of access control nor one of a console.
    """
    try:
        found: Any = json.loads(text)
    except ValueError as error:
        raise ConfigurationError(f"it is no JSON: {error}") from error
    if not isinstance(found, dict) or not found.get("users"):
        raise ConfigurationError("it has no users: add one with --add-user NAME")
    rows = found["users"]
    if not (isinstance(rows, list) and all(isinstance(each, dict) for each in rows)):
        raise ConfigurationError("users is no list of objects")
    if "role" in rows[0]:
        return _own(rows)
    table = AccessTable()
    table.load(text)
    return {
        user.username: ConsoleUser(
            name=user.username,
            role=Role.ADMIN if user.is_super else Role.VIEWER,
            check=_equals(user.password),
            secret=user.password,
        )
        for user in table.list_users()
        if user.is_enabled
    }


def _equals(secret: str) -> Callable[[str], bool]:
    kept = secret.encode("utf-8", "replace")

    def check(given: str) -> bool:
        is_password(_NOBODY, given)  # it takes as long as for a name that nobody has
        return hmac.compare_digest(kept, given.encode("utf-8", "replace"))

    return check


def _own(rows: list[Any]) -> dict[str, ConsoleUser]:
    users = {}
    for row in rows:
        try:
            line = str(row["password"])
            name, role = str(row["name"]), Role(row["role"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(
                "a user needs name, role (viewer, operator or admin) and password"
            ) from error
        if not name or not _LINE.fullmatch(line):
            raise ConfigurationError(
                f"the user {name!r} has no name, or no password of --add-user: add them again"
            )
        users[name] = ConsoleUser(name=name, role=role, check=_checks(line), secret=line)
    return users


def _checks(line: str) -> Callable[[str], bool]:
    return lambda given: is_password(line, given)


def add_user(path: Path, name: str, role: Role, password: str) -> None:
    """Write a user into a console's own file; a user of this name gets the new role and password.

    Raises:
        ConfigurationError: the file is another one.
    """
    rows: list[Any] = []
    if path.exists():
        read_users(path.read_text("utf-8"))
        rows = json.loads(path.read_text("utf-8"))["users"]
        if not isinstance(rows, list) or "role" not in rows[0]:
            raise ConfigurationError(
                f"--users {path}: this is a broker's file: add its users with reliable-mq access"
            )
    rows = [row for row in rows if row.get("name") != name]
    rows.append({"name": name, "role": role.value, "password": scrypt_line(password)})
    path.touch(mode=0o600)
    path.write_text(json.dumps({"users": rows}, indent=1) + "\n", "utf-8")
