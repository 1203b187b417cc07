"""All users and policies of a broker, and the text of their file `config/access.json`.

Receives changes. Returns users, decisions and the text. Apache keeps the same rows in two RocksDB
folders, which only RocksDB reads.
Source: Apache RocketMQ `AuthenticationMetadataManagerImpl`, `AuthorizationMetadataManagerImpl`.
"""

from collections.abc import Collection
from typing import Any

import msgspec

from reliable_mq.access.policies import (
    Acl,
    Action,
    Effect,
    PolicyType,
    acl_of,
    count_of,
    deciding_entry,
    merged,
    rows_of,
    without,
)
from reliable_mq.access.resources import Resource
from reliable_mq.access.users import (
    USERS_MAX,
    AccessRefused,
    User,
    UserChange,
    UserStatus,
    UserType,
    name_fault,
    secret_fault,
    user_of,
    username_of,
)
from reliable_mq.errors import InvariantBroken

PATH = "config/access.json"

ENTRIES_MAX = 50_000  # policy entries of all users; their file takes about 0.1 s to make
NO_USER = "The user is not exist"
NO_SUBJECT = "The subject is not exist."
_LAST = (
    "{} is the last super user that is enabled: without it, nobody could change users any more; "
    "create another super user first"
)


class AccessTable:
    """Users by name, and policies by user.

    Invariant X1: every policy belongs to a user of the table.
    Invariant X2: no change takes away the last super user that is enabled.
    """

    def __init__(self) -> None:
        self.users: dict[str, User] = {}  # others only read it
        self._acls: dict[str, Acl] = {}
        # What a guard has found out since the last change: why not, and who may send.
        self.decided: dict[object, str] = {}
        self.senders: dict[object, User] = {}

    def invariants(self) -> None:
        """X1; see the class."""
        lost = self._acls.keys() - self.users.keys()
        if lost:
            raise InvariantBroken(f"X1: {min(lost)!r} has policies and is no user")

    def create_user(self, name: str, change: UserChange) -> None:
        """Add a user.

        Raises:
            AccessRefused: the name or the secret is not valid, or the user exists.
        """
        fault = name_fault(name) or secret_fault(change.password or "")
        if fault:
            raise AccessRefused(fault)
        if name in self.users:
            raise AccessRefused("The user is existed")
        if len(self.users) >= USERS_MAX:
            raise AccessRefused(f"there are {USERS_MAX} users, no more are possible")
        self._put(
            User(
                username=name,
                password=change.password or "",
                user_type=change.user_type or UserType.NORMAL,
                user_status=change.user_status or UserStatus.ENABLE,
            )
        )

    def update_user(self, name: str, change: UserChange) -> None:
        """Change the given fields of a user.

        Raises:
            AccessRefused: there is no such user, the secret is not valid, or nobody could change
                users any more.
        """
        known = self.users.get(name)
        if known is None:
            raise AccessRefused(NO_USER)
        password = change.password if change.password and change.password.strip() else None
        if password is not None and (fault := secret_fault(password)):
            raise AccessRefused(fault)
        changed = User(
            username=name,
            password=known.password if password is None else password,
            user_type=change.user_type or known.user_type,
            user_status=change.user_status or known.user_status,
        )
        if not (changed.is_super and changed.is_enabled):
            self._refuse_last(known)
        self._put(changed)

    def delete_user(self, name: str) -> None:
        """Remove a user and its policies; an unknown user is no error.

        Raises:
            AccessRefused: nobody could change users any more.
        """
        known = self.users.get(name)
        if known is not None:
            self._refuse_last(known)
            del self.users[name]
            self._acls.pop(name, None)
            self._forget_decided()

    def _refuse_last(self, user: User) -> None:
        others = (each for each in self.users.values() if each.username != user.username)
        if user.is_super and user.is_enabled and not _has_super(others):
            raise AccessRefused(_LAST.format(user.subject))

    def _put(self, user: User) -> None:
        self.users[user.username] = user
        self._forget_decided()

    def _forget_decided(self) -> None:
        self.decided.clear()
        self.senders.clear()

    @property
    def has_super_user(self) -> bool:
        """Whether an enabled super user exists."""
        return _has_super(self.users.values())

    def list_users(self, part: str = "") -> list[User]:
        """Return the users whose names have a text, sorted by name. Default "": all."""
        return [self.users[name] for name in sorted(self.users) if part in name]

    def put_acl(self, name: str, acl: Acl) -> None:
        """Add policies to a user; those on the same resource are replaced.

        Raises:
            AccessRefused: there is no such user, or there would be too many policies.
        """
        if name not in self.users:
            raise AccessRefused(f"The subject of User:{name} is not exist.")
        new = merged(self._acls.get(name, {}), acl)
        others = (entries for each, entries in self._acls.items() if each != name)
        if sum(map(count_of, (new, *others))) > ENTRIES_MAX:
            raise AccessRefused(f"there are {ENTRIES_MAX} policy entries, no more are possible")
        self._acls[name] = new
        self._forget_decided()

    def delete_acl(self, name: str, kind: PolicyType, resource: Resource | None) -> None:
        """Remove a user's policy on a resource; None: all of its policies.

        Raises:
            AccessRefused: there is no such user, or it has no policies.
        """
        if name not in self.users:
            raise AccessRefused(NO_SUBJECT)
        acl = self._acls.get(name)
        if acl is None:
            raise AccessRefused("The acl is not exist.")
        left = {} if resource is None else without(acl, kind, resource)
        if left:
            self._acls[name] = left
        else:
            del self._acls[name]
        self._forget_decided()

    def acl_row(self, name: str) -> dict[str, object] | None:
        """Return the policies of a user as in answers; None: it has none.

        Raises:
            AccessRefused: there is no such user.
        """
        if name not in self.users:
            raise AccessRefused(NO_SUBJECT)
        acl = self._acls.get(name)
        return None if acl is None else {"policies": rows_of(acl), "subject": f"User:{name}"}

    def list_acls(self, subject: str = "", resource: str = "") -> list[dict[str, object]]:
        """Return the policies of all users as in answers, sorted by user.

        Args:
            subject: only subjects with this text, such as "User:s". Default "": all.
            resource: only entries whose resource has this text. Default "": all.
        """
        found: list[dict[str, object]] = []
        for name in sorted(self._acls):
            key = f"User:{name}"
            rows = rows_of(self._acls[name], resource)
            if subject in key and rows:
                found.append({"policies": rows, "subject": key})
        return found

    def fault_of(self, user: User, resource: Resource, actions: Collection[Action], ip: str) -> str:
        """Return why a user may not do this, in Apache's words; "": it may."""
        if user.is_super:
            return ""
        entry = deciding_entry(self._acls.get(user.username, {}), resource, actions, ip)
        if entry is not None and entry.effect is Effect.ALLOW:
            return ""
        why = "no matched policies." if entry is None else "the decision is deny."
        return f"{user.subject} has no permission to access {resource.key} from {ip}, {why}"

    def dump(self) -> str:
        """Return the content of the file. It has the secrets."""
        rows = {"acls": self.list_acls(), "users": [user.row() for user in self.list_users()]}
        return msgspec.json.format(msgspec.json.encode(rows), indent=1).decode()

    def load(self, text: str) -> None:
        """Load all users and policies from the content of the file, or nothing.

        Raises:
            ValueError: when the text is not in the format of this file, or an entry of it is not
                valid. The text names the entry and shows no secret.
        """
        rows = msgspec.json.decode(text)  # its errors show no part of the text
        if not isinstance(rows, dict):
            raise ValueError("it is no JSON object with users and acls")  # noqa: TRY004 - content
        users: dict[str, User] = {}
        for row in _listed(rows, "users"):
            user = user_of(row)
            if user.username in users:
                raise ValueError(f"user {user.username!r} is there twice")
            users[user.username] = user
        acls: dict[str, Acl] = {}
        for row in _listed(rows, "acls"):
            subject = row.get("subject") if isinstance(row, dict) else None
            name = username_of(subject) if isinstance(subject, str) else None
            if name is None or name not in users or name in acls:
                raise ValueError(f"policies of {subject!r}: it is no user, or is there twice")
            try:
                acls[name] = acl_of(row.get("policies"))
            except AccessRefused as error:
                raise ValueError(f"policies of {subject!r}: {error}") from error
        self.users, self._acls = users, acls
        self._forget_decided()


def _has_super(users: Any) -> bool:
    return any(each.is_super and each.is_enabled for each in users)


def _listed(rows: dict[str, Any], name: str) -> list[Any]:
    listed = rows.get(name, [])
    if not isinstance(listed, list):
        raise ValueError(f"{name} is no list")  # noqa: TRY004 - the content is wrong, not a type
    return listed
