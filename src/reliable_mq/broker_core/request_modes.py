"""The request mode, pull or pop, of each group and topic; file `config/messageRequestMode.json`.

Tools set it and clients read it. This broker only stores it, also for an Apache broker that may
open the store next. It serves pulls in either mode.
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
    """The mode of one group and topic. In POP mode `pop_share_queue_num` queues are shared."""

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
    """Modes by topic and group."""

    def __init__(self) -> None:
        self._file = _File()

    def __len__(self) -> int:
        return sum(map(len, self._file.message_request_mode_map.values()))

    def has(self, mode: RequestMode) -> bool:
        """Whether this group and topic have a mode."""
        return mode.consumer_group in self._file.message_request_mode_map.get(mode.topic, {})

    def mode_of(self, topic: str, group: str) -> RequestMode | None:
        """Return the mode of a group and topic; None: it has none."""
        return self._file.message_request_mode_map.get(topic, {}).get(group)

    def set_mode(self, mode: RequestMode) -> None:
        """Set the mode of a group and topic."""
        modes = self._file.message_request_mode_map.setdefault(mode.topic, {})
        modes[mode.consumer_group] = mode

    def forget(self, *, topic: str = "", group: str = "") -> bool:
        """Remove the modes of a topic or of a group; return whether there were any."""
        table = self._file.message_request_mode_map
        is_changed = table.pop(topic, None) is not None
        for name in [name for name, modes in table.items() if group in modes]:
            is_changed = True
            del table[name][group]
            if not table[name]:
                del table[name]
        return is_changed

    def take_over(self, text: str) -> bool:
        """Take over a master's table; return whether something has changed.

        Raises:
            ValueError: when the text is no such table. Nothing was changed then.
        """
        before = self._file
        self.load(text)
        return self._file != before

    def to_json(self) -> dict[str, object]:
        """Return the table in the format of the file."""
        table: dict[str, object] = msgspec.to_builtins(self._file)
        return table

    def dump(self) -> str:
        """Return the content of the file."""
        return fastjson.dumps(self.to_json(), indent=True).decode()

    def load(self, text: str) -> None:
        """Load the modes from the content of the file.

        Raises:
            ValueError: when the text is not in the format of this file.
        """
        self._file = msgspec.convert(fastjson.loads(text), _File)
