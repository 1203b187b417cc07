"""Values that brokers and tools keep at the name server, by namespace and key (`kvConfig.json`).

One namespace has a meaning here: ORDER_TOPIC_CONFIG, how many queues of each broker an ordered
topic has ("broker-a:4;broker-b:4"). Source: Apache RocketMQ `KVConfigManager`.
"""

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.wire import fastjson

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"


class SettingsTable:
    """Text values by namespace and key. `is_dirty` from a change until it was dumped."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, str]] = {}
        self.is_dirty = False

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._values.get(namespace, {}).get(key)

    def all_of(self, namespace: str) -> dict[str, str] | None:
        """Return a namespace's values by key; None when it never had one."""
        values = self._values.get(namespace)
        return None if values is None else dict(values)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Add or replace a value."""
        self._values.setdefault(namespace, {})[key] = value
        self.is_dirty = True

    def remove(self, namespace: str, key: str) -> None:
        """Forget a value, if it is there."""
        self._values.get(namespace, {}).pop(key, None)
        self.is_dirty = True

    def dump(self) -> str:
        """Return the text of the file."""
        self.is_dirty = False
        return fastjson.dumps({"configTable": self._values}).decode()

    def load(self, text: str) -> None:
        """Take the values from the text of the file.

        Raises:
            ValueError: when the text is no such file.
        """
        self._values = msgspec.convert(fastjson.loads(text), _File).config_table


@decodable
class _File(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
