"""What the index keeps in memory of a topic, so that it computes no hash twice."""

from typing import Any

from reliable_mq.wire.java_hash import KeyHashes
from reliable_mq.wire.properties import TAGS, property_value

_TAGS = f"{TAGS}\x01".encode()
_KNOWN_MAX = 128


class IndexedTopic:
    """Cached facts about a topic's messages.

    `rests` has the properties after a unique key, if they contain no other key. It maps them to the
    hash of the tag, or to -1 without a tag. There may be many topics, so one is made in a few us.
    """

    __slots__ = ("_tags", "_text", "hashes", "is_learned", "rests")

    def __init__(self, name: bytes) -> None:
        try:
            text = "" if b"\0" in name else name.decode()
        except UnicodeDecodeError:  # a lost sector
            text = ""
        self._text = text
        self.is_learned = False  # whether a shape of its messages was cached
        self.hashes = KeyHashes(f"{text}#")
        self.rests: dict[bytes, int] = {}
        self._tags: dict[bytes, int] = {}

    def hash_of_tag(self, tag: bytes) -> int:
        """Return the hash of a tag, or -1 if it is empty."""
        if not tag:
            return -1
        known = self._tags.get(tag)
        if known is None:
            make_room(self._tags)
            known = self._tags[tag] = KeyHashes(f"{self._text}#T#").whole(tag)
        return known

    def tag_hash(self, properties: bytes) -> int:
        """Return the hash of the tag, or -1 without one."""
        return self.hash_of_tag(tag_of(properties))


def tag_of(properties: bytes) -> bytes:
    """Return the tag of a message; empty without one."""
    return property_value(properties, _TAGS) or b""


def make_room(known: dict[Any, Any] | set[bytes]) -> None:
    """Forget all that is known if there is no room for more."""
    if len(known) >= _KNOWN_MAX:
        known.clear()
