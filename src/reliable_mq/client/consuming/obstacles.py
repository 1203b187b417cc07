"""Logs what prevents a consumer from reading: once, and not with every attempt."""

import logging
import math
from collections.abc import Mapping

from reliable_mq.telemetry import client_events

log = logging.getLogger(__name__)

MISSING_SECONDS = 30.0
"""How long a topic may be missing before it is logged."""


class Obstacles:
    """The obstacles that one consumer group has logged.

    Args:
        group: the group's name.
        are_declared: whether the names of its topics are known to be right.
    """

    def __init__(self, group: str, *, are_declared: bool = False) -> None:
        self._group = group
        self._if_missing = (
            client_events.TOPIC_AWAITED if are_declared else client_events.TOPIC_UNKNOWN
        )
        self._last: frozenset[str] = frozenset()
        self._told: set[str] = set()
        self._missing: dict[str, float] = {}  # since when, by topic
        self._idle: set[str] = set()  # topics of which a line says that this member gets nothing
        self.absent: set[str] = set()  #: topics of which a line says that they are not there

    def log_repeated(self, obstacles: frozenset[str]) -> None:
        """Log obstacles that were found twice in a row: most of them disappear by themselves."""
        for obstacle in sorted((obstacles & self._last) - self._told):
            client_events.CONSUMER_OBSTACLE.log(log, group=self._group, problem=obstacle)
            self._told.add(obstacle)
        if not obstacles and self._told:
            client_events.CONSUMER_UNOBSTRUCTED.log(log, group=self._group)
            self._told.clear()
        self._last = obstacles

    def note_absent(self, topic: str) -> None:
        """Note that a line says that a topic is not there: `note_read` logs when it is."""
        self.absent.add(topic)

    def note_read(self, topic: str) -> None:
        """Log a topic that a broker has just answered a pull of, if a line says it is not there."""
        if topic in self.absent:
            self.absent.discard(topic)
            client_events.TOPIC_THERE.log(log, group=self._group, topic=topic)

    def note_missing(self, topics: frozenset[str], now: float) -> None:
        """Log topics that are missing for long: no producer sends to them, or the name is wrong."""
        self._missing = {topic: self._missing.get(topic, now) for topic in topics}
        for topic, since in self._missing.items():
            if since + MISSING_SECONDS <= now:
                self._if_missing.log(log, group=self._group, topic=topic, seconds=MISSING_SECONDS)
                self._missing[topic] = math.inf  # it is logged
                self.absent.add(topic)

    def note_idle(self, idle: Mapping[str, tuple[int, int]], *, ordered: bool) -> None:
        """Log topics of which other members have all queues.

        Args:
            idle: the numbers of members and of queues, by topic.
            ordered: whether the group keeps the order of keys, so that it needs queues.
        """
        advice = "" if ordered else ', or consume by="message"'
        for topic in sorted(idle.keys() - self._idle):
            members, queues = idle[topic]
            client_events.MEMBER_IDLE.log(
                log,
                group=self._group,
                topic=topic,
                members=members,
                queues=queues,
                advice=f"give the topic more queues{advice}",
            )
        self._idle = set(idle)
