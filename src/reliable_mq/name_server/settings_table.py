"""Settings that brokers and tools keep at the name server, by namespace and key (`kvConfig.json`).

The name server itself reads one namespace, ORDER_TOPIC_CONFIG: the number of queues that an ordered
topic has on each broker ("broker-a:4;broker-b:4"). Source: Apache RocketMQ `KVConfigManager`.
"""

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.limits import NAMESPACE_COST, SETTING_COST, SETTINGS_SIZE_MAX
from reliable_mq.wire import fastjson

ORDER_TOPICS = "ORDER_TOPIC_CONFIG"


class SettingsTable:
    """Text values by namespace and key. `is_dirty` is True from a change until the next dump."""

    def __init__(self) -> None:
        self._values: dict[str, dict[str, str]] = {}
        self._size = 0  # characters of all texts, plus a fixed cost per value and per namespace
        self.is_dirty = False

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, or None."""
        return self._values.get(namespace, {}).get(key)

    def all_of(self, namespace: str) -> dict[str, str] | None:
        """Return a namespace's values by key; None when the namespace does not exist."""
        values = self._values.get(namespace)
        return None if values is None else dict(values)

    def set_value(self, namespace: str, key: str, value: str) -> None:
        """Add or replace a value.

        Raises:
            ValueError: when the table has no room for the value, or a text is not valid Unicode.
        """
        for text in (namespace, key, value):
            text.encode()  # text that is not valid Unicode would make every later save fail
        added = self._added(namespace, key, value)
        if added > 0 and self._size + added > SETTINGS_SIZE_MAX:
            self._drop_empty_namespaces()
            added = self._added(namespace, key, value)
        if added > 0 and self._size + added > SETTINGS_SIZE_MAX:
            raise ValueError(
                f"the name server keeps at most {SETTINGS_SIZE_MAX} characters of settings; "
                f"each value costs {SETTING_COST} more and each namespace {NAMESPACE_COST}; "
                "remove some settings first"
            )
        self._values.setdefault(namespace, {})[key] = value
        self._size += added
        self.is_dirty = True

    def _added(self, namespace: str, key: str, value: str) -> int:
        """Return the number of characters that a value would add to the size."""
        known = self.get(namespace, key)
        added = _cost(key, value) - (0 if known is None else _cost(key, known))
        return added + (0 if namespace in self._values else NAMESPACE_COST + len(namespace))

    def remove(self, namespace: str, key: str) -> None:
        """Remove a value, if it exists."""
        value = self._values.get(namespace, {}).pop(key, None)
        if value is not None:
            self._size -= _cost(key, value)
            self.is_dirty = True

    def _drop_empty_namespaces(self) -> None:
        for namespace in [name for name, values in self._values.items() if not values]:
            del self._values[namespace]
            self._size -= NAMESPACE_COST + len(namespace)

    def dump(self) -> str:
        """Return the content of the file, and clear `is_dirty`."""
        self.is_dirty = False
        return msgspec.json.encode({"configTable": self._values}, order="sorted").decode()

    def load(self, text: str) -> None:
        """Replace the values by the content of the file.

        Raises:
            ValueError: when the text is not in the format of this file.
        """
        self._values = msgspec.convert(fastjson.loads(text), _File).config_table
        self._size = sum(
            NAMESPACE_COST + len(namespace) + sum(_cost(*pair) for pair in values.items())
            for namespace, values in self._values.items()
        )


def _cost(key: str, value: str) -> int:
    return SETTING_COST + len(key) + len(value)


@decodable
class _File(msgspec.Struct, rename="camel"):
    config_table: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
