"""The settings of access control, with Apache RocketMQ's names.

Receives the texts of properties. Returns values; a text with a secret is never part of an error.
Source: Apache RocketMQ `AuthConfig`, `User`, `SessionCredentials`.
"""

from typing import Any

import msgspec

from reliable_mq.access.access_table import AccessTable
from reliable_mq.access.users import User, UserChange, UserType, name_fault, secret_fault
from reliable_mq.errors import ConfigurationError
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import RequestCode

_INIT_USER = "initAuthenticationUser"
_INNER_CLIENT = "innerClientAuthenticationCredentials"
SECRET_PROPERTIES = frozenset({_INIT_USER, _INNER_CLIENT})
_DIGITS_MAX = 10  # of a request code
_FORMS = {
    _INIT_USER: ("username", "password"),
    _INNER_CLIENT: ("accessKey", "secretKey"),
}
# Who may change users must be known: these codes cannot be taken out of authentication.
_ALWAYS_SIGNED = frozenset(code for code in RequestCode if code.name.startswith("AUTH_"))


class SecretText:
    """The text of a property that has a secret. `str` and `repr` only show whether there is one."""

    __slots__ = ("text",)

    def __init__(self, text: str = "") -> None:
        self.text = text

    def __str__(self) -> str:
        return "***" if self.text else ""

    def __repr__(self) -> str:
        return f"SecretText({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretText) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


class AccessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of access control. Whitelists have the codes that are not checked.

    `first_users` are created when they do not exist. `inner_client` signs the broker's own
    requests; None: they are not signed.
    """

    cluster: str
    authenticates: bool = False
    authorizes: bool = False
    unauthenticated: frozenset[int] = frozenset()
    unauthorized: frozenset[int] = frozenset()
    first_users: tuple[User, ...] = ()
    inner_client: User | None = None


def access_settings(
    *,
    cluster: str,
    authenticates: bool,
    authorizes: bool,
    authentication_whitelist: str,
    authorization_whitelist: str,
    first_user: SecretText,
    inner_client: SecretText,
) -> AccessSettings:
    """Return the settings from the texts of properties.

    Raises:
        ConfigurationError: a text cannot be read, or the settings would leave a door open.
    """
    if authorizes and not authenticates:
        raise ConfigurationError(
            "authorizationEnabled=true needs authenticationEnabled=true: without it, everybody "
            "may claim to be any user"
        )
    first, inner = _user(_INIT_USER, first_user), _user(_INNER_CLIENT, inner_client)
    unsigned = _codes("authenticationWhitelist", authentication_whitelist)
    if kept := sorted(unsigned & _ALWAYS_SIGNED):
        raise ConfigurationError(
            f"authenticationWhitelist: {kept[0]} changes or shows users; remove it from the list"
        )
    return AccessSettings(
        cluster=cluster,
        authenticates=authenticates,
        authorizes=authorizes,
        unauthenticated=unsigned,
        unauthorized=_codes("authorizationWhitelist", authorization_whitelist),
        first_users=tuple(each for each in (first, inner) if each is not None),
        inner_client=inner,
    )


def _user(name: str, secret: SecretText) -> User | None:
    """Return the super user in a property; None: the property is empty."""
    if not secret.text.strip():
        return None
    user_field, secret_field = _FORMS[name]
    form = f'{name}: write {{"{user_field}":"…","{secret_field}":"…"}}'
    try:
        row: Any = fastjson.loads(secret.text)
    except ValueError:
        raise ConfigurationError(form) from None
    username = row.get(user_field) if isinstance(row, dict) else None
    password = row.get(secret_field) if isinstance(row, dict) else None
    if not (isinstance(username, str) and isinstance(password, str)):
        raise ConfigurationError(form)
    if fault := name_fault(username) or secret_fault(password):
        raise ConfigurationError(f"{name}: {fault}")
    return User(username=username, password=password, user_type=UserType.SUPER)


def _codes(name: str, listed: str) -> frozenset[int]:
    words = [word for each in listed.split(",") if (word := each.strip())]
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) < _DIGITS_MAX):
            raise ConfigurationError(
                f"{name}={word:.40}: write request codes, such as 105,34, with commas between them"
            )
    return frozenset(map(int, words))


def begin_access(table: AccessTable, settings: AccessSettings) -> list[str]:
    """Create the users of the settings that do not exist; return their names.

    Raises:
        ConfigurationError: no super user could create others.
    """
    made: list[str] = []
    for user in settings.first_users:
        if user.username not in table.users:  # both settings may name the same user
            change = UserChange(password=user.password, user_type=UserType.SUPER)
            table.create_user(user.username, change)
            made.append(user.username)
    if not table.has_super_user:
        raise ConfigurationError(
            "authenticationEnabled=true needs a super user that is enabled: set "
            f'{_INIT_USER}={{"username":"…","password":"…"}}'
        )
    return made
