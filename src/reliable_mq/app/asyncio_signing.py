"""Signatures of an application's messages: made when a client sends, checked before a claim.

Receives the settings; hands on a middleware that signs, and what judges deliveries. One place signs
whatever leaves: what relays and schedulers send of stubs, halves, notices, and `mq.producer`'s.
"""

import ipaddress

from reliable_mq.client.connecting.name_servers import parse_addresses
from reliable_mq.client.observing.middleware import Middleware, Sending
from reliable_mq.host_and_port import host_and_port_of, unmapped
from reliable_mq.line_limit import limited_log
from reliable_mq.message import ReceivedMessage
from reliable_mq.settings import EMBEDDED, Settings
from reliable_mq.signature import Signer, signer_of

log = limited_log(__name__)


class SigningMiddleware(Middleware):
    """Signs what is sent. It comes last, so that it signs what other middlewares made of it."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def before_send(self, sending: Sending) -> None:
        """Put a signed message into the place of each."""
        sending.messages = [self._signer.signed(message) for message in sending.messages]


class Seal:
    """Says which deliveries of one consumer group must have no effect.

    Such a message takes no claim and touches no row: the message whose id it took comes later.
    """

    def __init__(self, signer: Signer, group: str) -> None:
        self._signer, self._group = signer, group

    def fault_of(self, message: ReceivedMessage) -> str:
        """Return why a delivery is refused, and write it to the log; "" when it is not."""
        fault = self._signer.fault_of(message)
        if not fault:
            return ""
        log.error(
            "group %s: message %s of topic %s is refused: %s",
            *(self._group, message.message_id, message.topic, fault),
        )
        return f"refused: {fault}"


def signer_by(settings: Settings) -> Signer | None:
    """Return what signs and checks messages by the settings; None: nothing does."""
    keys = settings.signing_keys.get_secret_value()
    return signer_of(keys, is_required=settings.signing_required)


def tell_unsigned(settings: Settings) -> None:
    """Warn when messages go to a broker elsewhere without a signature."""
    if not settings.signing_keys.get_secret_value() and not _is_local(settings.broker):
        log.warning(
            "messages are not signed, and the broker %s is not on this machine: whoever can send "
            "to its topics can take a message's id for another content; set signing_keys",
            settings.broker,
        )


def _is_local(broker: str) -> bool:
    if broker.startswith(EMBEDDED):
        return True
    places = map(host_and_port_of, parse_addresses(broker))
    return all(_is_loopback(place.host) for place in places)


def _is_loopback(host: str) -> bool:
    try:
        return unmapped(ipaddress.ip_address(host)).is_loopback
    except ValueError:
        return host == "localhost"
