"""A host and a port mean the same on every Python."""

import pytest

from reliable_mq.host_and_port import (
    NotAPlace,
    host_and_port_of,
    hosts_and_ports_of,
    place_of_authority,
    port_of,
)

JUNK_AROUND_BRACKETS = ["[::1]x:80", "x[::1]:80", "[::1].:7", "[::1]7000", "[[::1]]:1", "[::1]]:1"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("broker_1.shop.example:80", ("broker_1.shop.example", 80)),
        ("host.", ("host.", None)),
        ("bücher.example:1", ("bücher.example", 1)),
        ("192.0.2.7:65535", ("192.0.2.7", 65535)),
        ("[::1]", ("::1", None)),
        ("[2001:db8::7]:1", ("2001:db8::7", 1)),
        ("[fe80::1%eth0]:1", ("fe80::1%eth0", 1)),
    ],
)
def test_a_place_is_a_name_or_an_address_with_or_without_a_port(
    text: str, place: tuple[str, int | None]
) -> None:
    assert host_and_port_of(text) == place


@pytest.mark.parametrize(
    "text",
    [
        *JUNK_AROUND_BRACKETS,
        *(
            "",
            ":1",
            "[::1:1",
            "::1]:1",
            "[]:1",
            "[x]:1",
            "[192.0.2.7]:1",
            "[v1.x]:1",
            "::1",
            "::1:1",
        ),
        *("u@h:1", "a b:1", " a:1", "a:1 ", "a\n:1", "h/p:1", "a..b:1", ".", f"{64 * 'a'}:1"),
        *("a:", "a:0", "a:x", "a:-1", "a:65536", "a:²", "a:1:2", "[::1]:", "[::1]:0"),
        *("[fe80::1%]:1", "[fe80::1%e%f]:1", "[fe80::1%e@h]:1"),
    ],
)
def test_what_is_no_place_is_refused_by_words_that_show_nothing_of_it(text: str) -> None:
    with pytest.raises(NotAPlace, match=r"^a (host|port) is ") as refused:
        host_and_port_of(text)
    assert len(text) < 4 or text not in str(refused.value)


def test_several_places_have_commas_between_them_and_blanks_where_one_likes() -> None:
    assert hosts_and_ports_of("a, b:1 ,[::1]") == [("a", None), ("b", 1), ("::1", None)]


@pytest.mark.parametrize("text", ["", ",", "a,", ",a", "a,,b", "a, ,b"])
def test_no_place_of_several_is_empty(text: str) -> None:
    with pytest.raises(NotAPlace):
        hosts_and_ports_of(text)


def test_the_place_of_a_url_stands_behind_its_login_and_has_its_zone_encoded() -> None:
    assert place_of_authority("u:p%5B@[fe80::1%25eth0]:25") == ("fe80::1%eth0", 25)
    assert place_of_authority("host") == ("host", None)
    assert place_of_authority("u:p@") is None


@pytest.mark.parametrize("text", ["u:[::1]@h", "u:p]@h", *JUNK_AROUND_BRACKETS])
def test_brackets_stand_around_the_whole_host_of_a_url_and_nowhere_else(text: str) -> None:
    with pytest.raises(NotAPlace):
        place_of_authority(text)


@pytest.mark.parametrize("text", ["", "x", "-1", "+1", "1_0", "²", "\u0663", "65536", "9" * 5000])
def test_what_is_no_port_is_none(text: str) -> None:
    assert port_of(text) is None


def test_a_port_is_a_number_from_0_to_65535() -> None:
    assert [port_of(text) for text in ("0", "80", "65535")] == [0, 80, 65535]
