"""Mail addresses as people write them: `Ops <ops@shop.example>, dev@shop.example`.

Receives a text; hands on its addresses. Refuses to know what is sent to them.
"""

from email.errors import ObsoleteHeaderDefect
from email.headerregistry import Address
from email.policy import default


def addresses_of(text: str) -> tuple[Address, ...]:
    """Return the addresses of a text, in its order.

    The parser is that of mail headers. `email.utils.getaddresses` of patched Pythons takes no
    address of an IP, `ops@[IPv6:2001:db8::7]` (CPython gh-102988).

    Raises:
        ValueError: when there is none, or one of them does not read or names no domain.
    """
    if not text.isprintable():
        raise ValueError("it holds a sign that cannot be printed")
    try:
        header = default.header_factory("to", text)
    except Exception as error:  # the parser has no one error for what it does not read
        raise ValueError(f"it does not read ({type(error).__name__})") from error
    # An obsolete form is a name with dots that is not quoted: people write it.
    wrong = [each for each in header.defects if not isinstance(each, ObsoleteHeaderDefect)]
    if wrong:
        raise ValueError(str(wrong[0]) or type(wrong[0]).__name__)
    if not header.addresses or not all(each.domain for each in header.addresses):
        raise ValueError("it holds no address")
    return tuple(header.addresses)
