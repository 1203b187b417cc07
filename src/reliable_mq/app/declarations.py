"""What an application declares: its managed topics and its consumers. Values only."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from reliable_mq.app.consumer import Consumer, plan_of
from reliable_mq.app.key_reading import KeySource, key_reader_of
from reliable_mq.client.subscription import check_name, tags_of
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.limits import GROUP_LENGTH_MAX, TOPIC_LENGTH_MAX
from reliable_mq.settings import Settings


class Declarations:
    """Topics, the groups that their messages must reach, and the handlers of this application.

    Invariant: a consumer group has one handler.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topics: dict[str, tuple[str, ...]] = {}
        self._consumers: dict[str, Consumer] = {}

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers, in the order of their declaration."""
        return tuple(self._consumers.values())

    def leases(self, databases: Iterable[str]) -> dict[str, dict[str, float]]:
        """Return the lease of each consumer group, seconds, by the name of its database."""
        return {
            name: {each.group: each.lease for each in self.consumers if each.database == name}
            for name in databases
        }

    def topic(self, name: str, groups: Sequence[str]) -> None:
        """See `ReliableMQ.topic`."""
        check_name("topic", name, TOPIC_LENGTH_MAX)
        if isinstance(groups, str):
            raise ConfigurationError(f"groups={groups!r}: a list of names is needed, [{groups!r}]")
        for group in groups:
            check_name("consumer group", group, GROUP_LENGTH_MAX)
        self._topics[name] = tuple(sorted({*self._topics.get(name, ()), *groups}))

    def groups_of(self, topic: str, tag: str) -> tuple[str, ...]:
        """See `ReliableMQ.groups_of`."""
        self._topics.setdefault(topic, ())
        own = {
            each.group
            for each in self._consumers.values()
            if each.topic == topic and (not (tags := tags_of(each.tag)) or tag in tags)
        }
        return tuple(sorted(own.union(self._topics.get(topic, ()))))

    def is_managed(self, topic: str) -> bool:
        """Say whether a topic is declared, sent to by a transaction, or read by a consumer."""
        return topic in self._topics or any(
            each.topic == topic for each in self._consumers.values()
        )

    def consumer(
        self,
        function: Callable[..., Any],
        *,
        group: str,
        lease: float | None,
        idempotent_by: KeySource | None = None,
        **options: Any,
    ) -> None:
        """Take a handler; see `ReliableMQ.consumer`."""
        if group in self._consumers:
            raise UsageError(f"consumer group {group} has a handler already")
        seconds = self._settings.claim_lease if lease is None else lease
        if seconds >= (window := self._settings.duplicate_window):
            raise UsageError(f"lease={seconds}: it must be below duplicate_window={window}")
        if idempotent_by is not None:
            options["read_key"] = key_reader_of(idempotent_by, f"consumer group {group}")
        self._consumers[group] = Consumer(
            plan=plan_of(function), group=group, lease=seconds, **options
        )
