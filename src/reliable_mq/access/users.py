"""Users: a name, a secret, a type and a status.

The secret is kept as it is: an HMAC cannot be checked with a hash of its key.
Source: Apache RocketMQ `User`, `UserInfo`, `UserType`, `UserStatus`.
"""

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any

import msgspec

from reliable_mq.errors import ReliableMQError
from reliable_mq.limits import NAME_LENGTH_MAX
from reliable_mq.wire.request_signature import RequestSigner

SUBJECT = "User"
NOBODY = "-"
"""What the audit has in place of a user if no known user has signed."""
SECRET_LENGTH_MAX = 1_024
USERS_MAX = 10_000

_TYPES = "userType must be Super or Normal"
_STATES = "userStatus must be enable or disable"


class UserType(StrEnum):
    """What a user may do: everything, or what policies allow."""

    SUPER = "Super"
    NORMAL = "Normal"

    @property
    def is_super(self) -> bool:
        """Whether users of this type may do everything."""
        return self is UserType.SUPER


class UserStatus(StrEnum):
    """Whether a user may do anything at all."""

    ENABLE = "enable"
    DISABLE = "disable"


class AccessRefused(ReliableMQError):
    """A request is not allowed, or a change of users and policies is not possible."""


class User(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """One user. `repr` shows no secret."""

    username: str
    password: str
    user_type: UserType = UserType.NORMAL
    user_status: UserStatus = UserStatus.ENABLE

    @cached_property
    def is_super(self) -> bool:
        """Whether the user may do everything."""
        return self.user_type.is_super

    @cached_property
    def is_enabled(self) -> bool:
        """Whether the user may do anything."""
        return self.user_status is UserStatus.ENABLE

    @cached_property
    def signer(self) -> RequestSigner:
        """Makes the user's signatures."""
        return RequestSigner(self.password.encode("utf-8", "replace"))

    def __repr__(self) -> str:
        return f"User({self.username!r}, {self.user_type}, {self.user_status})"

    @property
    def subject(self) -> str:
        """The user as policies name it: "User:shop"."""
        return f"{SUBJECT}:{self.username}"

    def row(self) -> dict[str, str]:
        """Return the user as in the file and in answers, the secret included."""
        return {
            "password": self.password,
            "userStatus": self.user_status,
            "userType": self.user_type,
            "username": self.username,
        }


class UserChange(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a request that creates or changes a user; None: not given."""

    password: str | None = None
    user_type: UserType | None = None
    user_status: UserStatus | None = None

    def __repr__(self) -> str:
        return f"UserChange({self.user_type}, {self.user_status})"


def user_change_of(row: Any) -> UserChange:
    """Return the change in the body of a request.

    Apache takes an unknown type or status as one that is not given. Then a user whom somebody
    wanted to disable, and misspelt it, stays enabled.

    Raises:
        AccessRefused: the body is not an object with texts, or there is no such type or status.
    """
    if not isinstance(row, dict):
        raise AccessRefused("the body of user is null")
    texts = {name: row.get(name) for name in ("password", "userType", "userStatus")}
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise AccessRefused(f"{name} must be a text")
    kind, status = texts["userType"] or None, texts["userStatus"] or None
    change = UserChange(
        password=texts["password"],
        user_type=of_name(UserType, kind),
        user_status=of_name(UserStatus, status),
    )
    if kind and change.user_type is None:
        raise AccessRefused(_TYPES)
    if status and change.user_status is None:
        raise AccessRefused(_STATES)
    return change


def user_of(row: Any) -> User:
    """Return the user in a row of the file.

    Raises:
        ValueError: a field is missing or has no valid value. The text shows no secret.
    """
    name = row.get("username") if isinstance(row, dict) else None
    if not isinstance(name, str):
        raise ValueError("a user has no username")  # noqa: TRY004 - the content is wrong
    kind = of_name(UserType, row.get("userType", UserType.NORMAL))
    status = of_name(UserStatus, row.get("userStatus", UserStatus.ENABLE))
    if kind is None:
        raise ValueError(f"user {name!r}: {_TYPES}")
    if status is None:
        raise ValueError(f"user {name!r}: {_STATES}")
    password = row.get("password")
    fault = name_fault(name) or secret_fault(password if isinstance(password, str) else "")
    if fault:
        raise ValueError(f"user {name!r}: {fault}")
    return User(username=name, password=str(password), user_type=kind, user_status=status)


def name_fault(name: str) -> str:
    """Return what is wrong with the name of a user, in Apache's words if it has any; "" if fine."""
    if not name.strip():
        return "username can not be blank"
    if len(name) > NAME_LENGTH_MAX or not name.isprintable():
        return f"a username has 1..{NAME_LENGTH_MAX} printable characters"
    if name != name.strip() or name == NOBODY:
        return "a username has no spaces around it, and is not -, which stands for nobody"
    return ""


def secret_fault(password: str) -> str:
    """Return what is wrong with a secret; "" if it is fine. The text does not show it."""
    if not password.strip():
        return "password can not be blank"
    if len(password) > SECRET_LENGTH_MAX:
        return f"a password has at most {SECRET_LENGTH_MAX} characters"
    return ""


def username_of(subject: str) -> str | None:
    """Return the user that a policy's subject names: "User:shop"; None: it names no user."""
    kind, _, name = subject.partition(":")
    return name if kind.lower() == SUBJECT.lower() else None


def subject_in(row: Mapping[str, Any], fields: Mapping[str, str]) -> object:
    """Return the subject of a request that adds policies: that of its body, else of its fields."""
    return row.get("subject") or fields.get("subject", "")


def of_name(kind: Any, name: object) -> Any:
    """Return the member of an enumeration with this name in any case; None: there is none."""
    if not isinstance(name, str):
        return None
    return next((each for each in kind if each.lower() == name.lower()), None)
