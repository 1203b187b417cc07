"""What stands in a consumer's way, told once and not with every try."""

import logging
import math

log = logging.getLogger(__name__)

MISSING_SECONDS = 30.0
"""How long a topic may be nowhere before that is told."""


class Obstacles:
    """What one consumer group has told of what it cannot read.

    Args:
        group: the group's name.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._last: frozenset[str] = frozenset()
        self._told: set[str] = set()
        self._missing: dict[str, float] = {}  # since when, by topic

    def note(self, obstacles: frozenset[str]) -> None:
        """Log what stood in the way twice in a row: most of it goes away by itself."""
        for obstacle in sorted((obstacles & self._last) - self._told):
            log.warning("group %s: %s", self._group, obstacle)
            self._told.add(obstacle)
        if not obstacles and self._told:
            log.info("group %s reads all its topics again", self._group)
            self._told.clear()
        self._last = obstacles

    def note_missing(self, topics: frozenset[str], now: float) -> None:
        """Log topics that are nowhere for a while: nobody sends to them, or their name is wrong."""
        self._missing = {topic: self._missing.get(topic, now) for topic in topics}
        for topic, since in self._missing.items():
            if since + MISSING_SECONDS <= now:
                log.warning(
                    "group %s: no name server knows topic %s after %g s; has nobody sent to it?",
                    *(self._group, topic, MISSING_SECONDS),
                )
                self._missing[topic] = math.inf  # told
