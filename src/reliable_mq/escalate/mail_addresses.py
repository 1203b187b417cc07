"""Mail addresses as people write them: `Ops <ops@shop.example>, dev@shop.example`.

Receives a text; hands on its addresses. Refuses to know what is sent to them.
"""

import re
from email.errors import ObsoleteHeaderDefect
from email.headerregistry import Address
from email.policy import default
from ipaddress import IPv4Address, IPv6Address

ADDRESSES_MAX = 100
"""So many recipients of one mail every server takes, RFC 5321, section 4.5.3.1.8."""
TEXT_LENGTH_MAX = 20_000
"""Characters of all addresses together, with their names."""
_UNREADABLE = "it does not read as mail addresses"
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
_COMMENT = re.compile(r"\((?:\\.|[^()\\])*\)")
_NOBODY = re.compile(r"(?:^|[,:])\s*(?:[,;]|$)")
"""Nothing where an address should stand; the parser takes it without a word, or with one."""


def addresses_of(text: str) -> tuple[Address, ...]:
    """Return the addresses of a text, in its order, with commas between them.

    The parser is that of mail headers. `email.utils.getaddresses` of patched Pythons takes no
    address of an IP, `ops@[IPv6:2001:db8::7]` (CPython gh-102988). Forms that RFC 5322 calls
    obsolete are taken: `A. B. Doe <doe@shop.example>`.

    Raises:
        ValueError: when there is none, more than 100 or more than 20,000 characters, or one of
            them does not read, is empty, names no domain, or an IP that is none.
    """
    if not text.isprintable():
        raise ValueError("it holds a sign that cannot be printed")
    if len(text) > TEXT_LENGTH_MAX:
        raise ValueError(f"it has more than {TEXT_LENGTH_MAX:,} characters")
    try:
        header = default.header_factory("to", text)
        defects, found = header.defects, tuple(header.addresses)
    except Exception:  # noqa: BLE001 - the parser ends in many, other ones on each Python
        raise ValueError(_UNREADABLE) from None
    wrong = [each for each in defects if not isinstance(each, ObsoleteHeaderDefect)]
    if wrong:
        raise ValueError(str(wrong[0]) or _UNREADABLE)
    if not found or not all(each.domain for each in found):
        raise ValueError("it holds no address")
    if len(found) > ADDRESSES_MAX:
        raise ValueError(f"it holds more than {ADDRESSES_MAX} addresses; write to a mailing list")
    if _has_nobody(text):
        raise ValueError("an address between commas is empty")
    for each in found:
        if each.domain.startswith("[") and not _is_ip(each.domain[1:-1]):
            raise ValueError(f"{each.domain} is no [192.0.2.7] and no [IPv6:2001:db8::7]")
    return found


def _has_nobody(text: str) -> bool:
    """Say whether nothing but blanks and comments stands where an address should.

    One comma at the end promises none.
    """
    text, found = _QUOTED.sub("x", text).rstrip().removesuffix(","), 1
    while found:  # comments may stand in comments
        text, found = _COMMENT.subn(" ", text)
    return _NOBODY.search(text) is not None


def _is_ip(text: str) -> bool:
    """Say whether a text is the address of an IP, RFC 5321, section 4.1.3; it has no zone."""
    prefix, colon, address = text.partition(":")
    try:
        if colon and prefix.lower() == "ipv6":
            return IPv6Address(address).scope_id is None
        return bool(IPv4Address(text).packed)
    except ValueError:
        return False
