"""The quotas of a broker: made from its settings, and made again when these change. Pure."""

from collections import Counter

from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.quotas import Quotas, Rate, quotas_of
from reliable_mq.wire.codes import ResponseCode


class BrokerQuotas:
    """The quotas of topics for sends, and of groups for pulls; None: there is no limit.

    The codes of refusals are Apache's for a busy broker. Apache's client pulls again 20 ms after
    FLOW_CONTROL, and 3 s after SYSTEM_BUSY.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.topics: Quotas | None
        self.groups: Quotas | None
        self._refused = Counter(topic=0, group=0)  # by quotas that were changed meanwhile
        self._make(config)

    def _make(self, config: BrokerConfig) -> None:
        self._settings = of_topics, topics, of_groups, groups = _settings(config)
        self.topics = quotas_of("topic", ResponseCode.SYSTEM_BUSY, of_topics, topics)
        self.groups = quotas_of("group", ResponseCode.FLOW_CONTROL, of_groups, groups)

    def change(self, config: BrokerConfig) -> None:
        """Apply other settings. If a quota has changed, all begin with full buckets."""
        if _settings(config) != self._settings:
            self._refused = self.refusals()
            self._make(config)

    def refusals(self) -> Counter[str]:
        """Return how many requests were refused since the start, by "topic" and "group"."""
        found = self._refused.copy()
        for name, quotas in (("topic", self.topics), ("group", self.groups)):
            found[name] += quotas.refused if quotas is not None else 0
        return found


def _settings(config: BrokerConfig) -> tuple[Rate, str, Rate, str]:
    of_topics = Rate(config.topic_messages_max, config.topic_bytes_max)
    of_groups = Rate(config.group_messages_max, config.group_bytes_max)
    return of_topics, config.topic_quotas, of_groups, config.group_quotas
