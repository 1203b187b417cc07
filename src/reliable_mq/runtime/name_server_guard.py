"""The guard of a name server in a process of its own: its users are those of its settings."""

from collections.abc import MutableMapping

from reliable_mq.access.access_settings import (
    SecretText,
    access_settings,
    begin_access,
)
from reliable_mq.access.access_table import AccessTable
from reliable_mq.access.guard import Guard
from reliable_mq.errors import ConfigurationError

_ENABLED = "authenticationEnabled"
_USERS = ("initAuthenticationUser", "innerClientAuthenticationCredentials")


def take_guard(properties: MutableMapping[str, str]) -> Guard | None:
    """Remove the settings of access control, and return who guards the name server; None: nobody.

    The users are super users, so there are no policies.

    Raises:
        ConfigurationError: a setting cannot be read, or there is no user.
    """
    word = properties.pop(_ENABLED, "false").strip().lower()
    if word not in {"true", "false"}:
        raise ConfigurationError(f"{_ENABLED}={word:.40}: write true or false")
    first, inner = (SecretText(properties.pop(name, "")) for name in _USERS)
    settings = access_settings(
        cluster="",
        authenticates=word == "true",
        authorizes=word == "true",
        authentication_whitelist="",
        authorization_whitelist="",
        first_user=first,
        inner_client=inner,
    )
    if not settings.authenticates:
        return None
    table = AccessTable()
    begin_access(table, settings)
    return Guard(settings, table)
