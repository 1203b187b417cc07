"""The requests that change a name server: who may send them, and their lines in the audit.

Receives a command before it is handled, and its answer. Refuses it, or adds a line to the audit.
With access control, such a request needs the signature of a user who may: a broker signs with its
`innerClientAuthenticationCredentials`. Routes are for everybody, as at Apache's name server.
It performs no I/O itself.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from reliable_mq.access.guard import Guard
from reliable_mq.access.policies import Action
from reliable_mq.access.resources import topic_resource
from reliable_mq.access.users import NOBODY, AccessRefused, User
from reliable_mq.broker_core.audit import AuditRecord
from reliable_mq.broker_core.requests.audited import (
    HIDDEN,
    SECRET_NAME,
    changed_values,
)
from reliable_mq.broker_core.requests.audited_names import shown_names
from reliable_mq.broker_core.state import PeerConnection
from reliable_mq.line_limit import refusal_log
from reliable_mq.name_server.core import NameServerCore
from reliable_mq.name_server.settings_table import ORDER_TOPICS
from reliable_mq.plain_text import cut
from reliable_mq.telemetry import broker_events
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.java_properties import as_property
from reliable_mq.wire.peer_texts import read_properties
from reliable_mq.wire.request_signature import ACCESS_KEY

log = refusal_log(__name__)

_REASON_SHOWN_MAX = 300
_SIGN = (
    " A broker signs with its innerClientAuthenticationCredentials, a user that may Update here."
)
_RESULTS = {int(code): code.name for code in ResponseCode}

Names = Mapping[str, Any]


class _Change(NamedTuple):
    """A request that changes something: the fields that it names, and the values of that."""

    fields: Mapping[str, str]
    look: Callable[[NameServerCore, Names], object]


def _setting(core: NameServerCore, names: Names) -> object:
    """Return a setting; of one whose name says that it is a secret, whether there is one."""
    value = core.settings.get(names["namespace"], names["key"])
    return HIDDEN if value and SECRET_NAME.search(names["key"]) else value


def _broker(core: NameServerCore, names: Names) -> object:
    members = core.routes.members(names["cluster"], names["broker"])
    return {str(number): address for number, address in sorted(members.items())}


def _topic(core: NameServerCore, names: Names) -> object:
    route = core.routes.route(names["topic"])
    return None if route is None else route["queueDatas"]


def _permissions(core: NameServerCore, names: Names) -> object:
    return core.routes.permissions(names["broker"])


def _config(core: NameServerCore, names: Names) -> object:
    current = msgspec.to_builtins(core.config)
    return {name: as_property(current[name]) for name in names["settings"] if name in current}


_KEY = {"namespace": "namespace", "key": "key"}
_BROKER = {"cluster": "clusterName", "broker": "brokerName", "broker_address": "brokerAddr"}
_KNOWN = {"cluster": "clusterName", "broker": "brokerName"}
_NAMED = {"broker": "brokerName"}

CHANGES: Mapping[int, _Change] = {
    RequestCode.PUT_KV_CONFIG: _Change(_KEY, _setting),
    RequestCode.DELETE_KV_CONFIG: _Change(_KEY, _setting),
    RequestCode.REGISTER_BROKER: _Change({**_BROKER, "broker_id": "brokerId"}, _broker),
    RequestCode.UNREGISTER_BROKER: _Change(_BROKER, _broker),
    RequestCode.BROKER_HEARTBEAT: _Change(_KNOWN, _broker),
    RequestCode.QUERY_DATA_VERSION: _Change(_KNOWN, _broker),  # it renews the broker, too
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: _Change({"topic": "topic"}, _topic),
    RequestCode.DELETE_TOPIC_IN_NAMESRV: _Change(
        {"topic": "topic", "cluster": "clusterName"}, _topic
    ),
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: _Change(_NAMED, _permissions),
    RequestCode.ADD_WRITE_PERM_OF_BROKER: _Change(_NAMED, _permissions),
    RequestCode.UPDATE_NAMESRV_CONFIG: _Change({}, _config),
}
"""The requests that change something. The others of a name server only read."""

_RENEWALS = frozenset(
    {
        RequestCode.REGISTER_BROKER,
        RequestCode.BROKER_HEARTBEAT,
        RequestCode.QUERY_DATA_VERSION,
    }
)
"""Brokers repeat them every few seconds. One that was done and shows no change has no line."""


class Act(msgspec.Struct, kw_only=True):
    """A request that may change something.

    `refusal` is the answer to it, if it is refused. `before` and `after` are the values of what it
    names.
    """

    connection: PeerConnection
    command: Command
    now_ms: int
    names: Names
    user: str = ""
    refusal: Command | None = None
    before: object = None
    after: object = None


class NameServerActs:
    """Guards and audits the requests of one name server.

    Args:
        core: its tables.
        guard: who may change them; None: everybody.
    """

    def __init__(self, core: NameServerCore, guard: Guard | None = None) -> None:
        self.guard = guard
        self.refused = 0  # by access control, since the start
        self.audit = AuditRecord()
        self._core = core

    def begin(self, connection: PeerConnection, command: Command, now_ms: int) -> Act | None:
        """Look at a request before it is handled; None: it only reads."""
        change = CHANGES.get(command.code)
        if change is None:
            return None
        names = _names_of(command, change)
        act = Act(
            connection=connection,
            command=command,
            now_ms=now_ms,
            names=names,
            before=self._seen(change, names),
        )
        if self.guard is not None:
            try:
                user = self.guard.sender_of(command)
                act.user = user.username if user is not None else ""
                self._authorize(self.guard, user, act)
            except AccessRefused as error:
                self._refuse(act, str(error))
        act.after = act.before
        return act

    def _authorize(self, guard: Guard, user: User | None, act: Act) -> None:
        """Return if a user may do this; who may delete or create a topic may do so here, too.

        Raises:
            AccessRefused: the user may not.
        """
        code, names, connection = act.command.code, act.names, act.connection
        topic = ""
        actions: tuple[Action, ...] = (Action.CREATE, Action.UPDATE, Action.DELETE)
        if code == RequestCode.DELETE_TOPIC_IN_NAMESRV:
            topic, actions = names.get("topic", ""), (Action.DELETE,)
        elif names.get("namespace") == ORDER_TOPICS:
            topic = names.get("key", "")
        if topic:
            guard.check(act.command, connection.address, topic_resource(topic), actions)
        else:
            guard.authorize(user, act.command, connection.host, connection.address)

    def _refuse(self, act: Act, reason: str) -> None:
        self.refused += 1
        broker_events.ACCESS_REFUSED.log(
            log,
            code=act.command.code,
            client=act.connection.address,
            reason=cut(reason, _REASON_SHOWN_MAX),
        )
        hint = _SIGN if act.command.code == RequestCode.REGISTER_BROKER else ""
        act.refusal = reply(act.command, ResponseCode.NO_PERMISSION, f"{reason}{hint}")

    def done(self, act: Act) -> None:
        """Look at what a request has named after it was handled."""
        act.after = self._seen(CHANGES[act.command.code], act.names)

    def tell(self, act: Act, answer: Command) -> list[bytes]:
        """Return the line of an answered request; none for what brokers repeat without a change."""
        is_done = answer.code == ResponseCode.SUCCESS
        if is_done and act.before == act.after and act.command.code in _RENEWALS:
            return []
        self.audit.note(
            now_ms=act.now_ms,
            actor=act.user or NOBODY,
            address=act.connection.address,
            action=RequestCode(act.command.code).name,
            on=shown_names(act.names),
            seen=changed_values(act.before, act.after),
            result=_RESULTS.get(answer.code, str(answer.code)),
            is_done=is_done,
            hides=act.before == HIDDEN,
            why="" if is_done else answer.remark or "",
            claims="" if act.user else act.command.ext_fields.get(ACCESS_KEY, ""),
        )
        return self.audit.take()

    def _seen(self, change: _Change, names: Names) -> object:
        try:
            return change.look(self._core, names)
        except KeyError:  # a field is missing; its handler refuses it
            return None


def _names_of(command: Command, change: _Change) -> Names:
    if command.code == RequestCode.UPDATE_NAMESRV_CONFIG:
        try:
            return {"settings": sorted(read_properties(command.body))}
        except ValueError:  # its handler refuses it
            return {}
    ext = command.ext_fields
    return {name: ext[field] for name, field in change.fields.items() if field in ext}
