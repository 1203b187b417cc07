"""Checks of what an application connects with: its leases, who signs, whose store it is."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature

from reliable_mq.client.connecting.name_servers import parse_addresses
from reliable_mq.errors import ConfigurationError, StoreInUse
from reliable_mq.host_and_port import host_and_port_of, is_loopback
from reliable_mq.settings import EMBEDDED, Settings
from reliable_mq.telemetry import application_events

log = logging.getLogger(__name__)


def check_opens(leases: object) -> None:
    """Check that `leases` can be called without arguments.

    Raises:
        ConfigurationError: says what was given.
    """
    try:
        signature(leases).bind()  # type: ignore[arg-type]
    except ValueError:
        return  # a callable in C, without a signature
    except TypeError as error:
        raise ConfigurationError(
            f"leases={leases!r} is not a function without arguments that opens a LeaseStore: "
            f"{error}"
        ) from error


def warn_unsigned(settings: Settings) -> None:
    """Warn if messages go to a broker on another machine without a signature."""
    if settings.signing_keys.get_secret_value() or settings.broker.startswith(EMBEDDED):
        return
    places = map(host_and_port_of, parse_addresses(settings.broker))
    if not all(is_loopback(place.host) for place in places):
        application_events.MESSAGES_UNSIGNED.log(log, broker=settings.broker)


@contextmanager
def alone_in(directory: str) -> Iterator[None]:
    """Say how several processes have one broker, if another one uses an embedded broker's store.

    Raises:
        StoreInUse: another process, or another application, uses it.
    """
    try:
        yield
    except StoreInUse as error:
        raise StoreInUse(
            f"{error}. An embedded broker is for one process: for several, run reliable-mq broker "
            f"--store {directory}, and give them its address, broker='HOST:9876'"
        ) from error
