"""Mail addresses mean the same on every Python."""

import pytest

from reliable_mq.resend.mail_addresses import addresses_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ops@shop.example", ["ops@shop.example"]),
        ("A. B. Doe <doe@shop.example>", ["doe@shop.example"]),
        ("ops@shop.example, ", ["ops@shop.example"]),
        ("Ops <ops@shop.example>, dev@shop.example", ["ops@shop.example", "dev@shop.example"]),
        ('"Doe, J" <j@shop.example>,k@shop.example', ["j@shop.example", "k@shop.example"]),
        ("a@shop.example,b@[192.0.2.7]", ["a@shop.example", "b@[192.0.2.7]"]),
        ("b@[IPv6:2001:db8::7], a@shop.example", ["b@[IPv6:2001:db8::7]", "a@shop.example"]),
    ],
)
def test_addresses_are_read_in_their_order_with_names_and_addresses_of_hosts(
    text: str, found: list[str]
) -> None:
    assert [each.addr_spec for each in addresses_of(text)] == found


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "ops", "ops@", "@shop.example", "a@b.example c@d.example"),
        *("a@[IPv6:::1", "(" * 5_000),  # for these some Pythons raise errors of their own
        *("a@b.example;c@d.example", "a@b.example, <>", "<a@b.example"),
        "a@b.example\nBcc: c@d.example",
    ],
)
def test_what_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - each has its own words
        addresses_of(text)
    assert str(refused.value)
