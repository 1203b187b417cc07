"""The quotas of a broker: made from its settings, and made again when these change. Pure.

Receives who sends or reads what, and how much. A user is who has signed a request; without access
control nobody is known, and the quotas of users limit nobody.
"""

from collections import Counter
from typing import NamedTuple

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.quotas import Quotas, Rate, quotas_of
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.wire.codes import ResponseCode


class _Settings(NamedTuple):
    topics: tuple[Rate, str]
    groups: tuple[Rate, str]
    users: tuple[Rate, str]


class BrokerQuotas:
    """The quotas of topics and users for sends, and of groups and users for pulls.

    A user has two buckets: one for what it sends, and one for what it reads.
    The codes of refusals are Apache's for a busy broker. Apache's client pulls again 20 ms after
    FLOW_CONTROL, and 3 s after SYSTEM_BUSY.

    Attributes:
        limit_sends: whether a send must ask `take_send`.
        limit_pulls: whether a pull must ask `take_pull`, and tell `charge_pull` what it got.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self._refused = Counter(topic=0, group=0, user=0)  # by quotas that were changed meanwhile
        self._make(config)

    def _make(self, config: BrokerConfig) -> None:
        self._settings = _settings(config)
        topics, groups, users = self._settings
        busy, slow = ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL
        self.topics = quotas_of("topic", busy, *topics)
        self.groups = quotas_of("group", slow, *groups)
        self.senders = quotas_of("user", busy, *users)
        self.readers = quotas_of("user", slow, *users)
        self.limit_sends = self.topics is not None or self.senders is not None
        self.limit_pulls = self.groups is not None or self.readers is not None

    def change(self, config: BrokerConfig) -> None:
        """Apply other settings. If a quota has changed, all begin with full buckets."""
        if _settings(config) != self._settings:
            self._refused = self.refusals()
            self._make(config)

    def take_send(self, topic: str, user: str, size: int, now_ms: int) -> None:
        """Take one message from the buckets of a topic and a user.

        Args:
            topic: "": the topic is new, and has no bucket yet.
            user: "": nobody is known.
            size: bytes of the body.
            now_ms: the time.

        Raises:
            RequestRefused: when one of them is empty. Then nothing is taken.
        """
        _take_both(self.senders, user, self.topics, topic, (1, size), now_ms)

    def charge_send(self, topic: str, user: str, messages: int) -> None:
        """Take more messages for a send that was let through: it was a batch."""
        _charge(self.senders, user, messages, 0)
        _charge(self.topics, topic, messages, 0)

    def take_pull(self, group: str, user: str, now_ms: int) -> None:
        """Refuse a pull while the bucket of its group or its user is empty; see `take_send`.

        Raises:
            RequestRefused: when one of them is empty.
        """
        _take_both(self.readers, user, self.groups, group, (0, 0), now_ms)

    def charge_pull(self, group: str, user: str, messages: int, size: int) -> None:
        """Take what a pull has got."""
        _charge(self.readers, user, messages, size)
        _charge(self.groups, group, messages, size)

    def refusals(self) -> Counter[str]:
        """Return how many requests were refused since the start, by "topic", "group", "user"."""
        found = self._refused.copy()
        for name, quotas in (
            ("topic", self.topics),
            ("group", self.groups),
            ("user", self.senders),
            ("user", self.readers),
        ):
            found[name] += quotas.refused if quotas is not None else 0
        return found


def _take_both(
    users: Quotas | None,
    user: str,
    others: Quotas | None,
    name: str,
    taken: tuple[int, int],
    now_ms: int,
) -> None:
    """Take from the bucket of a user and from another one, or from none of them."""
    if users is not None and user:
        users.take(user, *taken, now_ms)
    if others is None or not name:
        return
    try:
        others.take(name, *taken, now_ms)
    except RequestRefused:
        messages, size = taken
        _charge(users, user, -messages, -size)
        raise


def _charge(quotas: Quotas | None, name: str, messages: int, size: int) -> None:
    if quotas is not None and name:
        quotas.charge(name, messages, size)


def _settings(config: BrokerConfig) -> _Settings:
    return _Settings(
        (Rate(config.topic_messages_max, config.topic_bytes_max), config.topic_quotas),
        (Rate(config.group_messages_max, config.group_bytes_max), config.group_quotas),
        (Rate(config.user_messages_max, config.user_bytes_max), config.user_quotas),
    )
