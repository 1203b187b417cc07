"""Flaws that the fuzzer must find: each takes out a mend of what broke under attack.

The numbers are of the list of what did not hold: 13 answers that fit no frame, 14 tables that fit
no frame, 15 descriptors, 16 numbers, 17 stalls, 18 memory.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from tests.fuzz.name_server_flaws import (
    brokers_without_bounds,
    put,
    put_no_limit,
    registrations_side_by_side,
)

from reliable_mq.broker_core import clients, config, config_reading, core
from reliable_mq.broker_core import offsets as offset_table
from reliable_mq.broker_core.delivery import long_poll, order_lock
from reliable_mq.broker_core.filter import sql92, tokens
from reliable_mq.broker_core.requests import (
    filtered_pull,
    groups,
    locks,
    offset_reset,
    offsets,
    pull,
    settings,
    subscription,
)
from reliable_mq.broker_core.store import disk
from reliable_mq.broker_core.topics import TopicTable
from reliable_mq.errors import Unavailable
from reliable_mq.name_server import registration
from reliable_mq.runtime import (
    descriptors,
    listener,
    name_server,
    registrar,
    server_connection,
    waiting_requests,
)
from reliable_mq.wire import peer_texts
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, encode_command
from reliable_mq.wire.headers import TopicPageHeader

_ENDLESS = 2**62


def answers_of_any_size() -> None:
    """An answer is encoded as it is, and whatever comes of that ends the broker."""
    for module in (core, pull, name_server):
        put(module, "encode_answer", encode_command)


def registration_in_one_part() -> None:
    """All topics are told at once, and a frame that cannot be encoded is not expected."""

    def parts(self: TopicTable, names: Iterable[str] | None, _size_max: int) -> Iterator[list[str]]:
        return self._rows.parts(names, _ENDLESS)

    async def call(self: registrar.Registrar, address: str, command: Command) -> bool:
        try:
            answer = await self._links.call(address, command, registrar._TIMEOUT)
        except Unavailable:
            self._informed.discard(address)
            return False
        return bool(answer.code == ResponseCode.SUCCESS)

    put(TopicTable, "parts", parts)
    put(registrar.Registrar, "_call", call)


def tables_without_pages() -> None:
    """Who asks for a page gets the whole table, or none."""
    header = TopicPageHeader
    decode = header.decode
    put(header, "decode", classmethod(lambda _cls, _ext: decode({})))


def a_file_for_each_queue() -> None:
    """No file is closed because others are needed, and a lack of descriptors is not expected."""
    init = descriptors.Descriptors.__init__

    def made(self: descriptors.Descriptors, _most: int | None = None) -> None:
        init(self, _ENDLESS)

    def attempt(_self: descriptors.Descriptors, act: Callable[[], Any]) -> Any:
        return act()

    put(descriptors.Descriptors, "__init__", made)
    put(descriptors.Descriptors, "_attempt", attempt)
    put(descriptors, "is_last", lambda _number: False)
    put(server_connection, "is_last", lambda _number: False)
    put(disk, "_OUT_OF_ROOM", ())


def numbers_without_bounds() -> None:
    """What reads as a number is one."""
    changed = config_reading.changed_config

    def unchecked(
        now: config.BrokerConfig, changes: Mapping[str, str]
    ) -> tuple[config.BrokerConfig, list[str]]:
        fields = {f.encode_name: f for f in msgspec.structs.fields(config.BrokerConfig)}
        numbers = {
            fields[name].name: int(value)
            for name, value in changes.items()
            if name in fields and type(fields[name].default) is int and value.isdecimal()
            if len(value) < 4_000
        }
        if numbers:
            return msgspec.structs.replace(now, **numbers), []
        return changed(now, changes)

    put(settings, "changed_config", unchecked)


def any_subscription() -> None:
    """A subscription may be of any size."""
    for module in (subscription, groups):
        put(module, "refuse_too_large", lambda _subscription: None)
    for module in (subscription, groups, pull):
        put(module, "refuse_above", lambda *_: None)


def filters_of_heartbeats() -> None:
    """The expression of a heartbeat is compiled when it comes, of whatever size it is."""

    def compiled(wanted: Any) -> None:
        if wanted.expression_type == sql92.SQL92:
            try:
                sql92.compile_filter(wanted.sub_string)
            except tokens.FilterRefused:
                return

    put(groups, "refuse_too_large", compiled)
    for name in ("FILTER_LENGTH_MAX", "FILTER_PARTS_MAX"):
        put(tokens, name, _ENDLESS)


def pulls_look_at_all() -> None:
    """A pull looks at as many messages as it asks for."""
    find = pull._find

    def found(state: Any, header: Any, wanted: Any) -> Any:
        put(pull, "_SCAN_MAX", max(800, header.max_msg_nums))
        put(filtered_pull, "_PARTS_MAX", _ENDLESS)
        return find(state, header, wanted)

    put(pull, "_find", found)


def all_pulls_wait_and_wake() -> None:
    """Any number of pulls waits, and all are answered at once."""
    put(long_poll.WaitingPulls, "has_room", lambda _self, _pull: True)
    put(core, "_WAITING_COST_MAX", _ENDLESS)


def groups_of_any_size() -> None:
    """What heartbeats leave in memory has no limit."""
    put(clients.ClientTable, "has_room", lambda *_, **__: True)


def registrations_in_one_go() -> None:
    """A registration of any size is worked through while all others wait."""
    put(registration, "REGISTERED_TOPICS_MAX", _ENDLESS)
    put_no_limit("topics")
    put(registration, "REGISTRATION_SIZE_MAX", _ENDLESS)
    for turn in ("_LONG_TURN", "_SHORT_TURN"):
        shares = getattr(server_connection, turn)._replace(works=math.inf)
        put(server_connection, turn, shares)


def settings_written_by_the_loop() -> None:
    """Each setting is written and synced, with all others, before anybody else is heard."""

    def written(self: name_server.NameServer, answered: name_server._Answered) -> None:
        if answered.command.code == RequestCode.PUT_KV_CONFIG:
            self._write(self._core.settings.dump())
        self._answer(answered)

    put(name_server.NameServer, "_done", written)
    endless = server_connection.Shares(*(math.inf,) * 6, written=_ENDLESS)
    for turn in ("_LONG_TURN", "_SHORT_TURN"):
        put(server_connection, turn, endless)
    put(server_connection, "_LARGE_IN_TURN", _ENDLESS)
    put(waiting_requests, "_LARGE_AT_ONCE", _ENDLESS)


def bodies_of_any_size() -> None:
    """A body may be of any size, and written in any way."""
    put(core, "REQUEST_BODY_SIZE_MAX", _ENDLESS)
    put(peer_texts, "SLOW_TEXT_SIZE_MAX", _ENDLESS)


def _note_nothing(_self: object, _connection_id: int, _size: int) -> None:
    """Count no bytes."""


def half_frames_are_kept() -> None:
    """All frames that have not come in whole are kept."""
    put(listener.Listener, "note_received", _note_nothing)


def unread_answers_are_kept() -> None:
    """All answers that nobody reads are kept, and who does not read is still read from."""
    put(listener.Listener, "note_unsent", _note_nothing)
    put(server_connection, "_UNSENT_PAUSE", 2**30)
    put(waiting_requests, "_LARGE_AT_ONCE", _ENDLESS)


def a_byte_keeps_a_frame_alive() -> None:
    """A frame may take for ever, if only a byte of it comes now and then."""

    def close_if_idle(self: server_connection.ServerConnection, silent_since: float) -> None:
        if not self._transport.is_closing() and self._last_used < silent_since:
            self._transport.abort()

    put(server_connection.ServerConnection, "close_if_idle", close_if_idle)


def invented_queues_are_kept() -> None:
    """Every queue that somebody names is taken for one."""
    for module in (offsets, locks, offset_reset):
        put(module, "is_known_queue", lambda *_: True)


def groups_multiply() -> None:
    """Every group may have something in every queue."""
    put(offset_table, "OFFSETS_SIZE_MAX", _ENDLESS)
    put(order_lock, "LOCKS_MAX", _ENDLESS)


class Flaw(NamedTuple):
    """Which line of the list a flaw brings back, how, and which kind of case finds it."""

    line: int
    plant: Callable[[], None]
    found_by: str


FLAWS: Mapping[str, Flaw] = {
    "answers of any size": Flaw(13, answers_of_any_size, "fields"),
    "registration in one part": Flaw(14, registration_in_one_part, "topics"),
    "tables without pages": Flaw(14, tables_without_pages, "topics"),
    "a file for each queue": Flaw(15, a_file_for_each_queue, "descriptors"),
    "numbers without bounds": Flaw(16, numbers_without_bounds, "numbers"),
    "filters of heartbeats": Flaw(17, filters_of_heartbeats, "filters"),
    "pulls look at all": Flaw(17, pulls_look_at_all, "pulls"),
    "any subscription": Flaw(17, any_subscription, "tags"),
    "all pulls wait and wake": Flaw(17, all_pulls_wait_and_wake, "held"),
    "registrations in one go": Flaw(17, registrations_in_one_go, "registrations"),
    "brokers without bounds": Flaw(17, brokers_without_bounds, "brokers"),
    "registrations side by side": Flaw(17, registrations_side_by_side, "at once"),
    "settings written by the loop": Flaw(17, settings_written_by_the_loop, "settings"),
    "bodies of any size": Flaw(17, bodies_of_any_size, "bodies"),
    "groups of any size": Flaw(18, groups_of_any_size, "groups"),
    "half frames are kept": Flaw(18, half_frames_are_kept, "partial"),
    "unread answers are kept": Flaw(18, unread_answers_are_kept, "silent"),
    "a byte keeps a frame alive": Flaw(18, a_byte_keeps_a_frame_alive, "slow"),
    "groups multiply": Flaw(18, groups_multiply, "multiplied"),
    "invented queues are kept": Flaw(18, invented_queues_are_kept, "invented"),
}
