"""Values of settings that are written as a text of several parts.

Receives texts. Returns values, or says which part is wrong.
"""

import ipaddress
import re

from reliable_mq.errors import ConfigurationError
from reliable_mq.plain_text import cut

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_DELAY = re.compile(r"[0-9]{1,9}[smhd]")
_SHOWN_MAX = 80  # characters of a value in an error
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_networks(text: str) -> tuple[Network, ...]:
    """Return the networks of a list with commas: `10.0.0.7,10.1.0.0/16`.

    Raises:
        ValueError: when one of them is no address or network.
    """
    return tuple(ipaddress.ip_network(each.strip()) for each in text.split(",") if each.strip())


def parse_delay_levels(text: str) -> dict[int, int]:
    """Return the delay of each level in milliseconds.

    Raises:
        ConfigurationError: when a level is not a number followed by s, m, h or d.
    """
    delays: dict[int, int] = {}
    for level, word in enumerate(text.split(), start=1):
        if not _DELAY.fullmatch(word):
            raise ConfigurationError(
                f"messageDelayLevel: {cut(word, _SHOWN_MAX)!r} is not a delay; write a number of "
                "at most nine digits, then s, m, h or d"
            )
        delays[level] = int(word[:-1]) * _UNITS_MS[word[-1]]
    if not delays:
        raise ConfigurationError("messageDelayLevel: at least one delay is needed")
    return delays
