"""Whether a group is to pull or to pop a topic, and the file `config/messageRequestMode.json`.

Tools set it and clients ask for it; this broker keeps it for them and for Apache's, which may open
the store next, and serves pulls whatever it says.
Source: Apache RocketMQ `MessageRequestModeManager`, `SetMessageRequestModeRequestBody`.
"""

from typing import Literal

import msgspec

from reliable_mq.decodable import decodable
from reliable_mq.wire import fastjson
from reliable_mq.wire.java_int import I32

PATH = "config/messageRequestMode.json"


@decodable
class RequestMode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was set for one group and topic; in the mode POP so many queues are shared."""

    topic: str
    consumer_group: str
    mode: Literal["PULL", "POP"] = "PULL"
    pop_share_queue_num: I32 = 0


@decodable
class _File(msgspec.Struct, rename="camel"):
    message_request_mode_map: dict[str, dict[str, RequestMode]] = msgspec.field(
        default_factory=dict
    )


class RequestModes:
    """What was set, by topic and group."""

    def __init__(self) -> None:
        self._file = _File()

    def __len__(self) -> int:
        return sum(map(len, self._file.message_request_mode_map.values()))

    def has(self, mode: RequestMode) -> bool:
        """Whether a mode of this group and topic was set."""
        return mode.consumer_group in self._file.message_request_mode_map.get(mode.topic, {})

    def put(self, mode: RequestMode) -> None:
        """Set the mode of a group and topic."""
        modes = self._file.message_request_mode_map.setdefault(mode.topic, {})
        modes[mode.consumer_group] = mode

    def forget(self, *, topic: str = "", group: str = "") -> bool:
        """Forget what was set for a topic, or for a group; return whether that was something."""
        table = self._file.message_request_mode_map
        is_changed = table.pop(topic, None) is not None
        for name in [name for name, modes in table.items() if group in modes]:
            is_changed = True
            del table[name][group]
            if not table[name]:
                del table[name]
        return is_changed

    def to_json(self) -> dict[str, object]:
        """Return the table as the file has it."""
        table: dict[str, object] = msgspec.to_builtins(self._file)
        return table

    def dump(self) -> str:
        """Return the text of the file."""
        return fastjson.dumps(self.to_json(), indent=True).decode()

    def load(self, text: str) -> None:
        """Take the modes from the text of the file.

        Raises:
            ValueError: when the text is no such file.
        """
        self._file = msgspec.convert(fastjson.loads(text), _File)
