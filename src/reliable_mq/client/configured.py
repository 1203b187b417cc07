"""Makes the client's settings from those of an application, a command or the environment.

It receives `ClusterSettings` and returns `ClientSettings`.
"""

from typing import Any

import msgspec

from reliable_mq.client.connecting.security import TLS, Credentials
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError
from reliable_mq.misspelt import meant
from reliable_mq.settings import ClusterSettings, load_cluster_settings


def configured(settings: ClusterSettings, **own: Any) -> ClientSettings:
    """Return the client's settings.

    Args:
        settings: an application's settings. Its field `client` has priority over its other fields.
        **own: values below both of these, but above the defaults.

    Raises:
        ConfigurationError: for an incomplete account, a key without its certificate, a field that
            `ClientSettings` does not have, or an invalid value.
    """
    named = own | _single(settings) | settings.client
    unknown = sorted(named.keys() - set(ClientSettings.__struct_fields__))
    if unknown:
        raise ConfigurationError(
            f"client: there is no setting {unknown[0]}"
            f"{meant(unknown[0], ClientSettings.__struct_fields__)}"
        )
    for name, kind in (("credentials", Credentials), ("tls", TLS)):
        if isinstance(named.get(name), dict):
            named[name] = _read(name, named[name], kind)
    try:
        return ClientSettings(**named)
    except ConfigurationError as error:
        if str(error).partition(" ")[0] not in settings.client:
            raise
        raise ConfigurationError(f"client: {error}") from error


def of_environment() -> ClientSettings:
    """Return the client's settings from the environment variables `RELIABLE_MQ_…`.

    Raises:
        ConfigurationError: as `configured`.
    """
    return configured(load_cluster_settings())


def _single(settings: ClusterSettings) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if settings.namespace:
        found["namespace"] = settings.namespace
    secret, token = (
        each.get_secret_value() for each in (settings.secret_key, settings.security_token)
    )
    if settings.access_key and not secret:
        raise ConfigurationError(
            "access_key has no secret_key: set secret_key (RELIABLE_MQ_SECRET_KEY), too"
        )
    if secret and not settings.access_key:
        raise ConfigurationError(
            "secret_key has no access_key: set access_key (RELIABLE_MQ_ACCESS_KEY), too"
        )
    if settings.access_key or secret or token:
        found["credentials"] = Credentials(
            access_key=settings.access_key, secret_key=secret, security_token=token
        )
    if settings.tls_key and not settings.tls_cert:
        raise ConfigurationError(
            "tls_key has no tls_cert: give the certificate, too (RELIABLE_MQ_TLS_CERT)"
        )
    files = {
        "ca": settings.tls_ca,
        "cert": settings.tls_cert,
        "key": settings.tls_key,
        "hostname": settings.tls_hostname,
    }
    if settings.tls or any(files.values()):
        found["tls"] = TLS(**files, verify=settings.tls_verify)
    return found


def _read(name: str, given: dict[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:  # the text has types, never values
        raise ConfigurationError(f"client: {name}: {error}") from error
