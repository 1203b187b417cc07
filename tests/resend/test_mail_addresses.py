"""Mail addresses mean the same on every Python."""

from random import Random

import pytest

from reliable_mq.escalate.mail_addresses import ADDRESSES_MAX, addresses_of


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ops@shop.example", ["ops@shop.example"]),
        ("A. B. Doe <doe@shop.example>", ["doe@shop.example"]),
        ("ops@shop.example, ", ["ops@shop.example"]),
        ("ops@shop.example,", ["ops@shop.example"]),
        ("Ops <ops@shop.example>, dev@shop.example", ["ops@shop.example", "dev@shop.example"]),
        ('"Doe, J" <j@shop.example>,k@shop.example', ["j@shop.example", "k@shop.example"]),
        ("a@shop.example,b@[192.0.2.7]", ["a@shop.example", "b@[192.0.2.7]"]),
        ("A. B. Doe <a@b.example>, C <c@d.example>", ["a@b.example", "c@d.example"]),
        ("a@b .example", ["a@b.example"]),
        ('"a,,b" (x,,y) <a@b.example>', ["a@b.example"]),
        ("ops: a@b.example, c@d.example;", ["a@b.example", "c@d.example"]),
        ("a@[ipv6:::1]", ["a@[ipv6:::1]"]),
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
        *(
            "a@b.example,,",
            "a@b.example, ,",
            ",a@b.example",
            "a@b.example,,c@d.example",
            "a@b.example,(x),c@d.example",
        ),
        *("ops:;", "a@b.example, ops:;", "a@[junk]", "a@[999.1.1.1]", "a@[]", "a@[IPv6:x]"),
        *("a@[::1]", "a@[IPv6:fe80::1%eth0]", "[", "a@]", "a@b,]", '"', "a@b<c"),
        "a@b.example " + "(" * 5000 + ")" * 5000,
    ],
)
def test_what_does_not_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - each has its own words
        addresses_of(text)
    assert str(refused.value)


def outcome(text: str) -> object:
    try:
        return addresses_of(text)
    except ValueError as error:  # any other error ends the test
        return type(error), str(error)


def test_every_refusal_of_odd_text_is_of_our_own_in_words() -> None:
    rng = Random(25)
    pieces = [
        *'()<>[]:;@,.\\" \t=?',
        "a",
        "b.example",
        "IPv6:",
        "::1",
        "=?utf-8?q?=41?=",
        "ö",
        "\0",
    ]
    for _ in range(3000):
        text = "".join(rng.choices(pieces, k=rng.randint(1, 12)))
        assert outcome(text) != (ValueError, "")


def test_a_mail_has_a_hundred_recipients_and_no_more() -> None:
    hundred = ", ".join(f"a{number}@shop.example" for number in range(ADDRESSES_MAX))

    assert len(addresses_of(hundred)) == 100
    with pytest.raises(ValueError, match="more than 100 addresses"):
        addresses_of(f"{hundred}, b@shop.example")


def test_a_text_of_any_length_is_refused_before_it_is_read() -> None:
    with pytest.raises(ValueError, match="more than 20,000 characters"):
        addresses_of("(" * 10_000_000)
