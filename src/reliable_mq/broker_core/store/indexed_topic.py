"""What the index keeps in memory of a topic, so that it computes no hash twice."""

from typing import Any

from reliable_mq.wire.java_hash import KeyHashes
from reliable_mq.wire.properties import TAGS, property_value

_TAGS = f"{TAGS}\x01".encode()
_KNOWN_MAX = 128


class IndexedTopic:
    """Cached facts about a topic's messages.

    `rests` has the properties after a unique key, if they contain no other key. It maps them to the
    hash of the tag, or to -1 without a tag.
    """

    __slots__ = ("hashes", "rests", "seen", "tag_hashes", "tags")

    def __init__(self, name: bytes) -> None:
        try:
            text = "" if b"\0" in name else name.decode()
        except UnicodeDecodeError:  # a lost sector
            text = ""
        self.hashes = KeyHashes(f"{text}#")
        self.tag_hashes = KeyHashes(f"{text}#T#")
        self.rests: dict[bytes, int] = {}
        self.seen: set[bytes] = set()  # rests that occurred once
        self.tags: dict[bytes, int] = {}

    def tag_hash(self, properties: bytes) -> int:
        """Return the hash of the tag, or -1 without one."""
        tag = property_value(properties, _TAGS)
        if not tag:
            return -1
        known = self.tags.get(tag)
        if known is None:
            make_room(self.tags)
            known = self.tags[tag] = self.tag_hashes.whole(tag)
        return known


def make_room(known: dict[Any, Any] | set[bytes]) -> None:
    """Forget all that is known if there is no room for more."""
    if len(known) >= _KNOWN_MAX:
        known.clear()
