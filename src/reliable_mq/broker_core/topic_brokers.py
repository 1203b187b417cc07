"""Which brokers of the cluster have queues of a topic, as the name servers say.

A broker that assigns queues must know those of all brokers. It asks when it needs a topic, and
keeps the answer for half a minute. The shell asks: `take_asked` says for what, `told` takes the
answer. A request that needs an unknown topic waits for the answer; an old answer is used while it
is renewed.
Source: Apache RocketMQ `TopicRouteInfoManager`.
"""

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

_FRESH_MS = 30_000
_TOPICS_MAX = 10_000
_WAITING_MAX = 1_000  # requests for one topic; further ones are answered by what this broker knows

Places = Sequence[tuple[str, int]]
"""Brokers by name, and how many readable queues each has."""


_Asking = TypeVar("_Asking")


class _Known(NamedTuple):
    until_ms: int
    places: Places


class TopicBrokers(Generic[_Asking]):
    """What name servers have said of topics. `is_followed`: whether somebody asks them."""

    def __init__(self) -> None:
        self.is_followed = False
        self._known: dict[str, _Known] = {}
        self._asked: dict[str, None] = {}
        self._waiting: dict[str, list[_Asking]] = {}

    def places(self, topic: str, request: _Asking, now_ms: int) -> Places | None:
        """Return where a topic is; None: nobody has said it yet, and `request` waits for that."""
        known = self._known.get(topic)
        if not self.is_followed:
            return ()
        if known is None or known.until_ms < now_ms:
            self._asked[topic] = None
        if known is not None:
            return known.places
        waiting = self._waiting.setdefault(topic, [])
        if len(waiting) >= _WAITING_MAX or len(self._waiting) > _TOPICS_MAX:
            return ()
        waiting.append(request)
        return None

    def take_asked(self) -> list[str]:
        """Return the topics for which the name servers must be asked."""
        asked, self._asked = list(self._asked), {}
        return asked

    def told(self, topic: str, places: Places, now_ms: int) -> list[_Asking]:
        """Take an answer; empty: the topic is nowhere. Return the requests that waited for it."""
        self._known.pop(topic, None)
        self._known[topic] = _Known(now_ms + _FRESH_MS, places)
        if len(self._known) > _TOPICS_MAX:
            del self._known[next(iter(self._known))]
        return self._waiting.pop(topic, [])
