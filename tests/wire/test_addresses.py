"""Addresses as people write them."""

import pytest

from reliable_mq.errors import ConfigurationError
from reliable_mq.wire.addresses import port_of, split_addresses


@pytest.mark.parametrize("text", ["", ";", "host", "host:port", ":9876", "h:70000", "h:0", "h/p:1"])
def test_addresses_that_are_none_are_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"host:port"):
        split_addresses(text)


def test_addresses_are_joined_by_semicolons_or_commas() -> None:
    assert split_addresses(" a:1; [::1]:2,c:65535;") == ("a:1", "[::1]:2", "c:65535")


@pytest.mark.parametrize("text", ["", "x", "-1", "+1", "1_0", "²", "\u0663", "65536", "9" * 5000])
def test_what_is_no_port_is_none(text: str) -> None:
    assert port_of(text) is None


def test_a_port_is_a_number_from_0_to_65535() -> None:
    assert [port_of(text) for text in ("0", "80", "65535")] == [0, 80, 65535]
