"""Parser of mail addresses as people write them: `Ops <ops@shop.example>, dev@shop.example`.

Receives a text, returns its addresses. Knows nothing of the mails that are sent to them.
"""

import re
from email.errors import ObsoleteHeaderDefect
from email.headerregistry import Address
from email.policy import default
from ipaddress import IPv4Address, IPv6Address

ADDRESSES_MAX = 100
"""Recipients of one mail that every server accepts: RFC 5321, section 4.5.3.1.8."""
TEXT_LENGTH_MAX = 20_000
"""Most characters of all addresses together, with their names."""
_UNREADABLE = "it is no list of mail addresses"
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"')
_COMMENT = re.compile(r"\((?:\\.|[^()\\])*\)")
_NOBODY = re.compile(r"(?:^|[,:])\s*(?:[,;]|$)")
"""An empty place between commas. The parser accepts it, with or without a defect."""


def addresses_of(text: str) -> tuple[Address, ...]:
    """Return the addresses of a text in which commas separate them, in the order of the text.

    It uses Python's parser of mail headers. `email.utils.getaddresses` of patched Pythons refuses
    IP addresses such as `ops@[IPv6:2001:db8::7]` (CPython gh-102988). Forms that RFC 5322 calls
    obsolete are accepted: `A. B. Doe <doe@shop.example>`.

    Raises:
        ValueError: when the text has no address, more than 100 addresses or more than 20,000
            characters, or when an address is unreadable, empty, or has no valid domain or IP.
    """
    if not text.isprintable():
        raise ValueError("it has a character that is not printable")
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
        raise ValueError("it has no address with a domain")
    if len(found) > ADDRESSES_MAX:
        raise ValueError(f"it has more than {ADDRESSES_MAX} addresses; use a mailing list")
    if _has_nobody(text):
        raise ValueError("an address between commas is empty")
    for each in found:
        if each.domain.startswith("[") and not _is_ip(each.domain[1:-1]):
            raise ValueError(f"{each.domain}: write an IP as [192.0.2.7] or [IPv6:2001:db8::7]")
    return found


def _has_nobody(text: str) -> bool:
    """Say whether a place for an address has only blanks and comments.

    One comma at the end of the text is allowed.
    """
    text, found = _QUOTED.sub("x", text).rstrip().removesuffix(","), 1
    while found:  # comments can be nested
        text, found = _COMMENT.subn(" ", text)
    return _NOBODY.search(text) is not None


def _is_ip(text: str) -> bool:
    """Say whether a text is an IP address literal of RFC 5321, section 4.1.3, without a zone."""
    prefix, colon, address = text.partition(":")
    try:
        if colon and prefix.lower() == "ipv6":
            return IPv6Address(address).scope_id is None
        return bool(IPv4Address(text).packed)
    except ValueError:
        return False
