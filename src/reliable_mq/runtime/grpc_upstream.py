"""The way from the gRPC endpoint to brokers: connections of its own, by Apache's remoting protocol.

A request of a broker (how has this transaction ended?) goes to the gateway.
"""

import ssl
from collections.abc import Callable, MutableMapping
from typing import Final

from reliable_mq.access.access_settings import SecretText, access_settings
from reliable_mq.access.users import User
from reliable_mq.errors import ConfigurationError
from reliable_mq.gateway.acting import ACTING
from reliable_mq.runtime.links import Dial, Links
from reliable_mq.runtime.registrar import send_nothing
from reliable_mq.runtime.tls_remedies import SERVER_WORDS
from reliable_mq.wire.command import Command
from reliable_mq.wire.request_signature import add_signature

CONNECT_SECONDS: Final = 3.0


class GrpcUpstream:
    """Connections to the brokers and name servers of a cluster.

    Args:
        user: signs requests that are not for a user of a client; None: nobody does.
        tls: gives the context of a new connection; None: plain.
        dial: returns a connected socket, whatever the address is; None: connect to the address.
    """

    def __init__(
        self,
        user: User | None = None,
        tls: Callable[[], ssl.SSLContext] | None = None,
        dial: Dial | None = None,
    ) -> None:
        self.on_request: Callable[[str, Command], Command | None] = lambda _address, _command: None
        self._links = Links(
            connect_timeout=CONNECT_SECONDS,
            on_request=self._requested,
            greet=send_nothing,
            on_lost=lambda _address: None,
            tls=tls,
            dial=dial,
            tls_words=SERVER_WORDS,
        )
        self._user = user

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        """Ask a server; see `gateway.asyncio_upstream.Ask`."""
        sign_for_caller(command, self._user)
        return await self._links.call(address, command, timeout)

    def _requested(self, address: str, command: Command) -> Command | None:
        return self.on_request(address, command)

    async def close(self) -> None:
        """Close all connections."""
        await self._links.close()


def sign_for_caller(command: Command, own: User | None) -> None:
    """Sign a request as the user of the client for whom it is, or as the endpoint's own user."""
    acting = ACTING.get()
    user = own if acting is None else acting.user
    if isinstance(user, User):
        add_signature(command, access_key=user.username, secret=user.password)


def take_user(properties: MutableMapping[str, str]) -> User | None:
    """Remove the user that signs requests to brokers from properties; None: nobody does.

    Raises:
        ConfigurationError: when the property cannot be read.
    """
    return access_settings(
        cluster="",
        authenticates=False,
        authorizes=False,
        authentication_whitelist="",
        authorization_whitelist="",
        first_user=SecretText(),
        inner_client=SecretText(properties.pop("innerClientAuthenticationCredentials", "")),
    ).inner_client


def take_signed(properties: MutableMapping[str, str]) -> bool:
    """Remove the setting that clients must sign their calls; return whether they must.

    Raises:
        ConfigurationError: when it is neither true nor false.
    """
    word = properties.pop("authenticationEnabled", "false").strip().lower()
    if word not in {"true", "false"}:
        raise ConfigurationError(f"authenticationEnabled={word:.40}: write true or false")
    return word == "true"
