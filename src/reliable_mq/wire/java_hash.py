"""Java's `String.hashCode`, on which tag filters and index files rest.

The hash runs over UTF-16 code units with 32-bit overflow (Java Language Specification,
`java.lang.String.hashCode`).
"""

from functools import lru_cache

_SIGN_BIT = 0x80000000
_MASK = 0xFFFFFFFF


def java_string_hash(text: str) -> int:
    """Return `text.hashCode()` as Java computes it, in -2**31 .. 2**31 - 1."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (value * 31 + (units[at] << 8 | units[at + 1])) & _MASK
    return value - (1 << 32) if value & _SIGN_BIT else value


# A topic has few tags and many messages. What is longer than any real tag is not worth the memory.
_known_tags_hash = lru_cache(maxsize=4096)(java_string_hash)
_REMEMBERED_LENGTH_MAX = 255


def tags_code(tag: str) -> int:
    """Return the tag hash stored in consume-queue units; 0 without a tag."""
    return _known_tags_hash(tag) if len(tag) <= _REMEMBERED_LENGTH_MAX else java_string_hash(tag)


def index_hash(topic: str, key: str) -> int:
    """Return the hash under which index files list `key`: never negative."""
    value = abs(java_string_hash(f"{topic}#{key}"))
    return 0 if value == _SIGN_BIT else value
