"""Which header of a message is its correlation id, and how the table of stubs keeps it. Pure.

Receives the properties of a message. Returns the text in the column `correlation_id`, by which
people find all messages of one request. It knows no database.
"""

from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256

from reliable_mq.database.row_values import TEXT_LENGTH_MAX
from reliable_mq.database.sql_types import plain_text
from reliable_mq.message import CORRELATION_ID

_DIGEST_LENGTH = 64
_OTHER_NAMES = frozenset({"correlationid", "xcorrelationid", "cecorrelationid"})
SPELLINGS = (CORRELATION_ID, "X-Correlation-ID", "CE_correlationid")
"""A name for each spelling that counts: ours and Apache's, that of HTTP, that of CloudEvents."""


@lru_cache(maxsize=1024)  # an application has few names of headers
def is_correlation_name(name: str) -> bool:
    """Return whether a header of this name has a correlation id. Case, `_` and `-` do not count."""
    return name.casefold().replace("_", "").replace("-", "") in _OTHER_NAMES


def correlation_of(properties: Mapping[str, str]) -> str:
    """Return the correlation id among the properties of a message; "": it has none.

    `CORRELATION_ID` comes first, then the first header whose name is another spelling of it.
    """
    value = properties.get(CORRELATION_ID)
    if value is None:
        names = (name for name in properties if is_correlation_name(name))
        value = properties.get(next(names, CORRELATION_ID), "")
    return value


def column_of(properties: Mapping[str, str]) -> str | None:
    """Return what the column has for the properties of a message; null: no correlation id."""
    value = correlation_of(properties)
    return kept_correlation(value) if value else None


def kept_correlation(text: str) -> str:
    """Return a correlation id as the column has it: the text itself, if it fits.

    A text that is too long, or that a database refuses, ends with its digest there. So two texts
    never have one form, and an index finds each of them by an exact comparison.
    """
    plain = plain_text(text)
    if len(text) <= TEXT_LENGTH_MAX and plain == text:
        return text
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return plain[: TEXT_LENGTH_MAX - _DIGEST_LENGTH] + digest
