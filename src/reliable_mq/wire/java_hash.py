"""Java's `String.hashCode`, on which tag filters and index files rest.

The hash runs over UTF-16 code units with 32-bit overflow (Java Language Specification,
`java.lang.String.hashCode`).
"""

from functools import lru_cache
from operator import mul

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
    return _listed(java_string_hash(f"{topic}#{key}"))


_KEY_LENGTH_MAX = 255  # longer keys go the slow way
_TAIL = 4  # of the ids that one client makes in a millisecond only the last characters differ
_POWERS: list[int] = [pow(31, n, 1 << 32) for n in range(_KEY_LENGTH_MAX + 1)]
_FACTORS = [tuple(reversed(_POWERS[:n])) for n in range(_KEY_LENGTH_MAX + 1)]


class KeyHashes:
    """The hashes of many keys of one topic, from their UTF-8 form; as `index_hash` has them.

    Args:
        prefix: what stands before each key, "topic#" for keys.
    """

    __slots__ = ("_prefix", "_prefix_hash")

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._prefix_hash = java_string_hash(prefix) & _MASK

    def of(self, key: bytes) -> int:
        """Return the hash of a key, never negative."""
        length = len(key)
        if length > _KEY_LENGTH_MAX or not key.isascii():
            text = self._prefix + key.decode("utf-8", "replace")
            return _listed(java_string_hash(text))
        if length > _TAIL:
            a, b, c, d = key[-_TAIL:]
            own = _head_hash(key[:-_TAIL]) * 923521 + a * 29791 + b * 961 + c * 31 + d
        else:
            own = _ascii_hash(key)
        return _listed(self._prefix_hash * _POWERS[length] + own)


def _ascii_hash(text: bytes) -> int:
    value: int = sum(map(mul, text, _FACTORS[len(text)]))
    return value & _MASK


_head_hash = lru_cache(maxsize=1024)(_ascii_hash)


def _listed(value: int) -> int:
    """Return the absolute value of a 32-bit hash; Java has none for the smallest, Apache says 0."""
    value &= _MASK
    if value & _SIGN_BIT:
        value = (1 << 32) - value
    return 0 if value == _SIGN_BIT else value
