"""Names of topics, consumer groups, tags and tables: legal names, prefixes and tag filters."""

from collections.abc import Hashable
from functools import lru_cache

from reliable_mq.errors import ConfigurationError

RETRY_PREFIX = "%RETRY%"
DEAD_LETTER_PREFIX = "%DLQ%"
EVERY_TAG = "*"
TABLE_PREFIX_PATTERN = r"^[a-z][a-z0-9_]{0,31}$"

_LEGAL_CHARACTERS = frozenset("%|-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


def check_name(what: str, name: str, length_max: int) -> None:
    """Check the name of a topic or group by the rules of Apache's `TopicValidator`.

    Raises:
        ConfigurationError: the name is empty, too long or has an illegal character.
    """
    if not is_legal_name(name, length_max):
        if isinstance(name, str) and "://" in name:  # it may have a password
            raise ConfigurationError(f"the name of the {what} comes first, and this is a URL")
        raise ConfigurationError(
            f"{what} {name!r} is not a legal name: use 1..{length_max} of a-z A-Z 0-9 _ - % |"
        )


def is_legal_name(name: str, length_max: int) -> bool:
    """Return whether a topic or group may have this name."""
    # Callers without a type checker may pass something else than a text.
    is_text = isinstance(name, str)
    return is_text and 0 < len(name) <= length_max and _LEGAL_CHARACTERS.issuperset(name)


@lru_cache(maxsize=1024)
def tags_of(expression: Hashable) -> frozenset[str]:
    """Return the tags that a tag expression accepts; the empty set accepts every tag.

    A value that is not a text is an SQL92 expression (`Sql`), which names no tags.
    """
    if not isinstance(expression, str) or expression.strip() in ("", EVERY_TAG):
        return frozenset()
    return frozenset(tag for part in expression.split("||") if (tag := part.strip()))
