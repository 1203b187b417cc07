"""Who created which topics and groups: limits of them, in all and of one user. Pure.

Receives names that a request would add, and the user who has signed it. Says whether there is room
for them. Without access control no user is known, and only the limits for all hold. A super user
may change the limits, and so has none of its own.

The creators are kept in a file of our own, `config/creators.json`. An attribute of a topic would be
the creator's to change, and Apache's broker refuses attributes that it does not know. A count alone
would not know whom a deleted topic belonged to.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from reliable_mq.access.access_table import AccessTable
from reliable_mq.broker_core.config import BrokerConfig
from reliable_mq.broker_core.config_files import ConfigFiles
from reliable_mq.broker_core.groups import GroupTable
from reliable_mq.broker_core.json_rows import JsonRows
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.store.disk import RowsText
from reliable_mq.broker_core.topics import TopicTable
from reliable_mq.decodable import decodable
from reliable_mq.errors import InvariantBroken
from reliable_mq.wire import fastjson
from reliable_mq.wire.codes import ResponseCode

PATH = "config/creators.json"

Kind = Literal["topic", "group"]
_PROPERTIES = {"topic": ("maxTopics", "maxTopicsOfUser"), "group": ("maxGroups", "maxGroupsOfUser")}


class Creators:
    """The users who created topics and groups, by name.

    Invariant G2: the count of a user is that of the names with this creator.

    Args:
        topics: the broker's topics.
        groups: its groups.
        access: its users.
        files: where the file is saved.
    """

    def __init__(
        self, topics: TopicTable, groups: GroupTable, access: AccessTable, files: ConfigFiles
    ) -> None:
        self.refused: Counter[str] = Counter(topic=0, group=0)  # requests, since the start
        self._tables: Mapping[Kind, TopicTable | GroupTable] = {"topic": topics, "group": groups}
        self._access = access
        self._files = files
        self._users: Mapping[Kind, dict[str, str]] = {"topic": {}, "group": {}}  # by name
        self._rows: Mapping[Kind, JsonRows] = {"topic": JsonRows(), "group": JsonRows()}
        self._counts: Mapping[Kind, Counter[str]] = {"topic": Counter(), "group": Counter()}

    def invariants(self) -> None:
        """G2; see the class.

        Raises:
            InvariantBroken: when a count is wrong.
        """
        for kind, users in self._users.items():
            self._rows[kind].check(users)
            if Counter(users.values()) != +self._counts[kind]:
                raise InvariantBroken(f"G2: the creators of {kind}s are {self._counts[kind]}")

    def fault(self, kind: Kind, names: Collection[str], user: str, config: BrokerConfig) -> str:
        """Return why a request may not add these names; "": it may. Known names are no matter.

        Args:
            kind: what they name.
            names: of the request.
            user: who has signed it; "": nobody.
            config: has the limits.
        """
        return self._fault_of(kind, len(self._new(kind, names)), user, config)

    def _new(self, kind: Kind, names: Iterable[str]) -> list[str]:
        table = self._tables[kind].by_name
        return [name for name in dict.fromkeys(names) if name not in table]

    def _fault_of(self, kind: Kind, new: int, user: str, config: BrokerConfig) -> str:
        """Return why a request may not add so many names; "": it may."""
        table = self._tables[kind].by_name
        most, own_most = _limits(kind, config)
        of_all, of_user = _PROPERTIES[kind]
        if new and len(table) + new > most:
            self.refused[kind] += 1
            return f"the broker has {len(table)} {kind}s, of at most {most} ({of_all}): {_CURE}"
        own = self._counts[kind][user]
        if new and self._is_limited(user) and own + new > own_most:
            self.refused[kind] += 1
            return (
                f"user {user} has created {own} {kind}s, of at most {own_most} ({of_user}): {_CURE}"
            )
        return ""

    def refuse(
        self, kind: Kind, names: Collection[str], user: str, config: BrokerConfig
    ) -> list[str]:
        """Return the names that a request would add; see `fault`.

        Raises:
            RequestRefused: when there is no room for them.
        """
        new = self._new(kind, names)
        if fault := self._fault_of(kind, len(new), user, config):
            raise RequestRefused(ResponseCode.SYSTEM_ERROR, fault)
        return new

    def _is_limited(self, user: str) -> bool:
        known = self._access.users.get(user)
        return known is not None and not known.is_super

    def note(self, kind: Kind, names: Iterable[str], user: str) -> None:
        """Note that a user has created these names, which were new; nobody and super users not."""
        if not self._is_limited(user):
            return
        for name in names:
            self._put(kind, name, user)
            self._files.change(PATH, self.dump)

    def _put(self, kind: Kind, name: str, user: str) -> None:
        self._drop(kind, name)
        self._users[kind][name] = user
        self._rows[kind].set(name, user)
        self._counts[kind][user] += 1

    def forget(self, kind: Kind, name: str) -> None:
        """Note that a topic or a group was deleted."""
        if self._drop(kind, name):
            self._files.change(PATH, self.dump)

    def _drop(self, kind: Kind, name: str) -> bool:
        user = self._users[kind].pop(name, None)
        if user is None:
            return False
        self._rows[kind].remove(name)
        self._counts[kind][user] -= 1
        if not self._counts[kind][user]:
            del self._counts[kind][user]
        return True

    def dump(self) -> RowsText:
        """Return the content of the file."""
        groups = self._rows["group"].table()
        return self._rows["topic"].indented(f'{{\n\t"groups":{groups},\n\t"topics":', "\n}")

    def load(self, text: str) -> None:
        """Load the creators from the content of the file.

        Raises:
            ValueError: when the text is not in the format of this file.
        """
        file = fastjson.decode(text, _File)
        for name, user in file.topics.items():
            self._put("topic", name, user)
        for name, user in file.groups.items():
            self._put("group", name, user)

    def settle(self) -> None:
        """Forget what does not exist: after a crash, or since Apache's broker had the store."""
        for kind, table in self._tables.items():
            for name in [name for name in self._users[kind] if name not in table.by_name]:
                self.forget(kind, name)


_CURE = "delete some that nobody uses"


def _limits(kind: Kind, config: BrokerConfig) -> tuple[int, int]:
    if kind == "topic":
        return config.topics_max, config.topics_of_user_max
    return config.groups_max, config.groups_of_user_max


@decodable
class _File(msgspec.Struct):
    topics: dict[str, str] = msgspec.field(default_factory=dict)
    groups: dict[str, str] = msgspec.field(default_factory=dict)
