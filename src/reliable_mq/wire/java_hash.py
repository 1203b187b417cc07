"""Java's `String.hashCode`; tag filters and index files use it.

The hash runs over UTF-16 code units with 32-bit overflow (Java Language Specification,
`java.lang.String.hashCode`): a polynomial in 31; the first unit has the highest power.
"""

import struct
from collections.abc import Iterable
from functools import lru_cache
from operator import mul

_SIGN_BIT = 0x80000000
_MASK = 0xFFFFFFFF
_CUT_LENGTH_MAX = 255
_POWERS: list[int] = [pow(31, n, 1 << 32) for n in range(_CUT_LENGTH_MAX + 1)]
_FACTORS = [tuple(reversed(_POWERS[:n])) for n in range(_CUT_LENGTH_MAX + 1)]


def java_string_hash(text: str) -> int:
    """Return `text.hashCode()` as Java computes it, in -2**31 .. 2**31 - 1."""
    if text.isascii() and len(text) <= _CUT_LENGTH_MAX:
        value: int = sum(map(mul, text.encode(), _FACTORS[len(text)])) & _MASK
        return value - (1 << 32) if value & _SIGN_BIT else value
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (value * 31 + (units[at] << 8 | units[at + 1])) & _MASK
    return value - (1 << 32) if value & _SIGN_BIT else value


# A topic has few tags and many messages. A text longer than any real tag is not worth the memory.
_known_tags_hash = lru_cache(maxsize=4096)(java_string_hash)
topic_hash = lru_cache(maxsize=1024)(java_string_hash)
"""Returns `java_string_hash` of a topic: there are few, with many messages."""
_REMEMBERED_LENGTH_MAX = 255


def tags_code(tag: str) -> int:
    """Return the tag hash in consume-queue units; 0 without a tag."""
    return _known_tags_hash(tag) if len(tag) <= _REMEMBERED_LENGTH_MAX else java_string_hash(tag)


def index_hash(topic: str, key: str) -> int:
    """Return the hash of `key` in index files; never negative."""
    return _listed(java_string_hash(f"{topic}#{key}"))


def _listed(value: int) -> int:
    """Return the absolute value. The smallest int has none in Java; Apache stores 0 for it."""
    return 0 if value == -_SIGN_BIT else abs(value)


TAIL = 8
_HEADS_MAX = 512


@lru_cache(maxsize=_HEADS_MAX)
def _own_hash(head: bytes) -> int:
    """Return the share of an ASCII head without what is before it: many topics have the same."""
    return sum(map(mul, head, _FACTORS[len(head)]))


class KeyHashes:
    """Computes `index_hash` for many keys of one topic, from their UTF-8 form.

    The ids of one client differ only in the last characters. So a key is cut into a head and a tail
    of 8 bytes. The head's share of the hash is cached; `index_hashes` adds the shares of all tails
    at once.

    Invariant: `shares` holds the shares of ASCII heads of keys that were cut.
    """

    __slots__ = ("_prefix", "_prefix_hash", "shares")

    def __init__(self, prefix: str) -> None:
        """Begin with no head.

        Args:
            prefix: the text before each key; "topic#" for message keys.
        """
        self.shares: dict[bytes, bytes] = {}
        self._prefix = prefix
        self._prefix_hash = java_string_hash(prefix) & _MASK

    def cut(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the share of a key's head, and its tail; None when the caller must use `whole`."""
        if not key.isascii() or len(key) > _CUT_LENGTH_MAX:
            return None
        if len(key) <= TAIL:
            return _share(self._prefix_hash * _POWERS[len(key)]), key.rjust(TAIL, b"\0")
        head = key[:-TAIL]
        share = self.shares.get(head)
        if share is None:
            before = self._prefix_hash * _POWERS[len(head)]
            share = _share((before + _own_hash(head)) * _POWERS[TAIL])
            if len(self.shares) >= _HEADS_MAX:
                self.shares.clear()
            self.shares[head] = share
        return share, key[-TAIL:]

    def whole(self, key: bytes) -> int:
        """Return the hash of any key, computed character by character."""
        return _listed(java_string_hash(self._prefix + key.decode("utf-8", "replace")))


def _share(value: int) -> bytes:
    return (value & _MASK).to_bytes(TAIL)


_GROUP = 512  # a mask is as long as a group of tails
_GROUP_SIZE = _GROUP * TAIL
_BYTES = int.from_bytes(b"\x00\xff" * (_GROUP * TAIL // 2))
_PAIRS = int.from_bytes(b"\x00\x00\xff\xff" * (_GROUP * TAIL // 4))
_FOURS = int.from_bytes(b"\x00\x00\x00\x00\xff\xff\xff\xff" * _GROUP)
_ONES = int.from_bytes(b"\x00\x00\x00\x00\x00\x00\x00\x01" * _GROUP)
_POSITIVE = _FOURS - (_ONES << 31)


def index_hashes(shares: Iterable[bytes], tails: Iterable[bytes]) -> list[int]:
    """Return `index_hash` of keys that `KeyHashes.cut` has cut; some may be joined already."""
    all_shares, all_tails = b"".join(shares), b"".join(tails)
    hashes: list[int] = []
    for begin in range(0, len(all_tails), _GROUP_SIZE):
        group = slice(begin, begin + _GROUP_SIZE)
        hashes += _group_hashes(all_shares[group], all_tails[group])
    return hashes


def _group_hashes(shares: bytes, tails: bytes) -> list[int]:
    """Compute with all tails as one large number: first byte * 31 + second in each 16-bit lane,
    then first pair * 31**2 + second in each 32-bit lane, then the same with 31**4 in 64 bits.

    A lane holds first * 2**n + second. A smaller multiple of the first is subtracted, so a lane
    never borrows from the next one. The lower half of a lane of 64 bits is the hash.
    """
    lanes = int.from_bytes(tails)
    lanes -= (lanes >> 8 & _BYTES) * (2**8 - 31)
    lanes -= (lanes >> 16 & _PAIRS) * (2**16 - 31**2)
    lanes -= (lanes >> 32 & _FOURS) * (2**32 - 31**4)
    lanes += int.from_bytes(shares)
    # The absolute value: one less, inverted; of the smallest int, 0 is left.
    signs = lanes >> 31 & _ONES
    lanes = ((lanes & _FOURS) ^ (signs << 32) - signs) + signs & _POSITIVE
    return list(struct.unpack(f">{len(tails) // TAIL}q", lanes.to_bytes(len(tails))))
