"""Where a provider of OpenID Connect is asked: its endpoints, as it says itself.

Receives what reads a JSON object at an address. Keeps an answer for an hour, and a failure for some
seconds: while a provider is away, few threads wait for it.
"""

import threading
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.errors import ConfigurationError, Unavailable
from reliable_mq.plain_text import printable

KEPT_SECONDS = 3_600.0
AWAY_SECONDS = 5.0
"""For this time after a failure, the provider is not asked again."""
REQUEST_SECONDS = 5.0


def check_address(name: str, address: str) -> None:
    """Check that an address is HTTPS. At this machine, HTTP will do.

    Raises:
        ConfigurationError: it is not.
    """
    try:
        found = urlsplit(address)
        host = found.hostname or ""
    except ValueError as error:
        raise ConfigurationError(f"{name} {printable(address, 200)!r}: {error}") from error
    is_here = host in ("localhost", "127.0.0.1", "::1")
    if not host or found.scheme not in (("https", "http") if is_here else ("https",)):
        raise ConfigurationError(
            f"{name} {printable(address, 200)!r}: write an address that begins with https://"
        )
    if found.query or found.fragment or found.username:
        raise ConfigurationError(f"{name} has no query, no fragment and no user")


@decodable
class Endpoints(msgspec.Struct, frozen=True):
    """What a provider says of itself."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str


class KnownEndpoints:
    """The endpoints of a provider, of the last hour.

    Invariant: one thread asks for them. After a failure, the others do not wait for it.

    Args:
        issuer: the address of the provider.
        read: returns the JSON object at an address.
        now: seconds since the epoch.
    """

    def __init__(
        self, issuer: str, read: Callable[[str], dict[str, Any]], now: Callable[[], float]
    ) -> None:
        self._issuer = issuer
        self._read = read
        self._now = now
        self._asking = threading.Lock()
        self._lock = threading.Lock()
        self._kept: tuple[float, Endpoints] | None = None
        self._failed: tuple[float, str] | None = None

    def known(self) -> Endpoints:
        """Return the endpoints.

        Raises:
            Unavailable: the provider does not answer, or not as it should.
        """
        if (known := self._of_last_hour()) is not None:
            return known
        with self._lock:
            failed = self._failed
        if not self._asking.acquire(timeout=0.0 if failed else REQUEST_SECONDS):
            raise Unavailable(failed[1] if failed else f"{self._issuer} has not answered yet")
        try:
            known = self._of_last_hour()  # another thread may have asked
            return self._asked() if known is None else known
        finally:
            self._asking.release()

    def _of_last_hour(self) -> Endpoints | None:
        now = self._now()
        with self._lock:
            kept, failed = self._kept, self._failed
        if kept is not None and now < kept[0] + KEPT_SECONDS:
            return kept[1]
        if failed is not None and now < failed[0] + AWAY_SECONDS:
            raise Unavailable(failed[1])
        return None

    def _asked(self) -> Endpoints:
        try:
            endpoints = self._discovered()
        except Unavailable as error:
            with self._lock:
                self._failed = (self._now(), str(error))
            raise
        with self._lock:
            self._kept, self._failed = (self._now(), endpoints), None
        return endpoints

    def _discovered(self) -> Endpoints:
        found = self._read(f"{self._issuer.rstrip('/')}/.well-known/openid-configuration")
        try:
            endpoints = msgspec.convert(found, Endpoints)
            for name in ("authorization_endpoint", "token_endpoint", "jwks_uri"):
                check_address(name, getattr(endpoints, name).partition("?")[0])
        except (msgspec.ValidationError, ConfigurationError) as error:
            host = urlsplit(self._issuer).hostname
            raise Unavailable(f"{host} does not say where it is asked: {error}") from error
        if endpoints.issuer != self._issuer:
            raise Unavailable(
                f"{self._issuer} says that its issuer is another one: {endpoints.issuer}"
            )
        return endpoints
