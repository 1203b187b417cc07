"""Addresses as people write them."""

import pytest

from reliable_mq.errors import ConfigurationError
from reliable_mq.wire.addresses import split_addresses


@pytest.mark.parametrize(
    "text",
    [
        *("", ";", "host", "host:port", ":9876", "h:70000", "h:0", "h/p:1", "a:1;b"),
        *("[::1:9876", "[]:1", "[x]:1", "[::1]x:1", "x[::1]:1", "::1:9876", "u@h:1", "a b:1"),
    ],
)
def test_addresses_that_are_none_are_named(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"host:port"):
        split_addresses(text)


def test_a_login_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigurationError, match="takes no login, is no host:port") as refused:
        split_addresses("a:1;shop:secret@h:1")
    assert "secret" not in str(refused.value)


def test_addresses_are_joined_by_semicolons_or_commas() -> None:
    assert split_addresses(" a:1; [::1]:2,c:65535;") == ("a:1", "[::1]:2", "c:65535")


def test_the_address_of_a_link_has_its_zone() -> None:
    assert split_addresses("[fe80::1%eth0]:9876") == ("[fe80::1%eth0]:9876",)
