"""Which requests are audited, what each names, and which values it may change.

Receives a request before it is handled, and its answer. Adds a line to the audit. It stands outside
of the guard of access control, so a request that is refused there has a line, too.

Every code of `HANDLERS` is in `AUDITED` or in `NOT_AUDITED`, never in both.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from reliable_mq.access.guard import Guard
from reliable_mq.access.users import NOBODY, AccessRefused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.limits import REQUEST_BODY_SIZE_MAX
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.java_properties import as_property
from reliable_mq.wire.peer_texts import read_json, read_properties
from reliable_mq.wire.request_signature import ACCESS_KEY

_NAMES_MAX = 20  # of one line: a request may name thousands
_QUEUES_MAX = 256
_STRANGERS_BODY_SIZE_MAX = 16_384  # bytes
HIDDEN = "***"
SECRET_NAME = re.compile(
    "password|passwd|secret|token|credential|authenticationuser", re.IGNORECASE
)

Names = Mapping[str, Any]


class Audited(NamedTuple):
    """One audited code.

    `names`: returns what a request names; None: this request changes nothing. `look`: returns the
    values of that, to be compared before and after; None: there are none to show. `hides`: whether
    a change may be one that the values do not show.
    """

    names: Callable[[Command], Names | None]
    look: Callable[[BrokerState, Names], object] | None = None
    hides: bool = False


def _fields(**wanted: str) -> Callable[[Command], Names]:
    """Return a function that reads names from the fields of a request: name=field."""

    def names(command: Command) -> Names:
        ext = command.ext_fields
        return {name: ext[field] for name, field in wanted.items() if field in ext}

    return names


def _nothing(_command: Command) -> Names:
    return {}


def _row(**wanted: str) -> Callable[[Command], Names]:
    """Return a function that reads names from the JSON object in the body: its texts."""

    def names(command: Command) -> Names:
        row = read_json(command.body) if command.body else {}
        found = {name: row.get(field) for name, field in wanted.items()}
        return {name: value for name, value in found.items() if isinstance(value, str)}

    return names


def _rows(name: str, table: str, field: str) -> Callable[[Command], Names]:
    """Return a function that reads names from a list of objects in the body."""

    def names(command: Command) -> Names:
        rows, read = _rows_in(command.body, table)
        values = [read(row, field) for row in rows[:_NAMES_MAX]]
        found = [value for value in values if isinstance(value, str)]
        return {name: found, "count": len(rows)} if len(rows) > _NAMES_MAX else {name: found}

    return names


def _rows_in(body: bytes, table: str) -> tuple[list[Any], Callable[[Any, str], Any]]:
    """Return the rows of a list of objects, and what reads a field: most rows are not read."""
    try:
        unread = msgspec.json.decode(body, type=dict[str, msgspec.Raw])[table]
        return msgspec.json.decode(unread, type=list[msgspec.Raw]), _field_in
    except msgspec.DecodeError:  # not standard JSON
        return read_json(body)[table], operator.getitem


def _field_in(row: msgspec.Raw, field: str) -> Any:
    """Return a field. No other one is read: a handler may accept a row with 1e999 in another."""
    return msgspec.json.decode(msgspec.json.decode(row, type=dict[str, msgspec.Raw])[field])


def _properties(name: str) -> Callable[[Command], Names]:
    def names(command: Command) -> Names:
        return {name: sorted(read_properties(command.body))[:_NAMES_MAX]}

    return names


def _forbidden(command: Command) -> Names | None:
    """UPDATE_AND_GET_GROUP_FORBIDDEN also only asks."""
    if "readable" not in command.ext_fields:
        return None
    return _fields(group="group", topic="topic")(command)


def _topic(state: BrokerState, names: Names) -> object:
    return msgspec.to_builtins(state.topics.get(names["topic"]))


def _topics(state: BrokerState, names: Names) -> object:
    return {name: msgspec.to_builtins(state.topics.get(name)) for name in names["topics"]}


def _group(state: BrokerState, names: Names) -> object:
    return msgspec.to_builtins(state.groups.get(names["group"]))


def _groups(state: BrokerState, names: Names) -> object:
    return {name: msgspec.to_builtins(state.groups.get(name)) for name in names["groups"]}


def _readable(state: BrokerState, names: Names) -> object:
    return {"readable": not state.groups.is_read_forbidden(names["group"], names["topic"])}


def _mode(state: BrokerState, names: Names) -> object:
    mode = state.request_modes.mode_of(names["topic"], names["group"])
    return msgspec.to_builtins(mode)


def _settings(state: BrokerState, names: Names) -> object:
    """Return settings as the broker shows them, but no secret."""
    current = msgspec.to_builtins(state.config, enc_hook=str)
    return {
        name: HIDDEN if SECRET_NAME.search(name) and current[name] else as_property(current[name])
        for name in names["settings"]
        if name in current
    }


def _read_ahead(state: BrokerState, _names: Names) -> object:
    return {"dataReadAheadEnable": state.config.data_read_ahead}


def _thresholds(state: BrokerState, names: Names) -> object:
    return {name: state.cold_read_thresholds.get(name) for name in names["groups"]}


def _removed_threshold(command: Command) -> Names:
    return {"groups": [command.body.decode()]}


def _offsets(state: BrokerState, names: Names) -> object:
    """Return a group's offsets in a topic, by queue; without a topic, in its first topics."""
    group, topic = names["group"], names.get("topic", "")
    topics = [topic] if topic else sorted(state.offsets.topics_of(group))[:_NAMES_MAX]
    return {
        name: {
            str(queue_id): offset
            for queue_id, offset in sorted(state.offsets.all_of(group, name).items())[:_QUEUES_MAX]
        }
        for name in topics
    }


def _user(state: BrokerState, names: Names) -> object:
    """Return a user without its secret; a changed secret does not show."""
    table: Any = getattr(state, "access", None)
    user = table.users.get(names["user"]) if table is not None else None
    if user is None:
        return None
    return {name: value for name, value in user.row().items() if not SECRET_NAME.search(name)}


def _policies(state: BrokerState, names: Names) -> object:
    table: Any = getattr(state, "access", None)
    name = str(names.get("subject", "")).removeprefix("User:")
    return table.acl_row(name) if table is not None and name in table.users else None


_POLICY = Audited(_fields(subject="subject", resource="resource"), _policies)
_TOPIC_NAMED = _fields(topic="topic")

AUDITED: Mapping[int, Audited] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: Audited(_TOPIC_NAMED, _topic),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Audited(
        _rows("topics", "topicConfigList", "topicName"), _topics
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: Audited(_TOPIC_NAMED, _topic),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Audited(_row(group="groupName"), _group),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Audited(
        _rows("groups", "groupConfigList", "groupName"), _groups
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Audited(
        _fields(group="groupName", clean_offset="cleanOffset"), _group
    ),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: Audited(_forbidden, _readable),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Audited(
        _row(topic="topic", group="consumerGroup"), _mode
    ),
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: Audited(_properties("groups"), _thresholds),
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: Audited(_removed_threshold, _thresholds),
    RequestCode.SET_COMMITLOG_READ_MODE: Audited(_nothing, _read_ahead),
    RequestCode.UPDATE_BROKER_CONFIG: Audited(_properties("settings"), _settings),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Audited(
        _fields(group="group", topic="topic", timestamp="timestamp"), _offsets
    ),
    RequestCode.CLONE_GROUP_OFFSET: Audited(
        _fields(group="destGroup", from_group="srcGroup", topic="topic"), _offsets
    ),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Audited(
        _fields(group="consumerGroup", client="clientId", message_id="msgId")
    ),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: Audited(_fields(message_id="msgId")),
    RequestCode.RESET_MASTER_FLUSH_OFFSET: Audited(_fields(offset="masterFlushOffset")),
    RequestCode.DELETE_EXPIRED_COMMITLOG: Audited(_nothing),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Audited(_nothing),
    RequestCode.CLEAN_UNUSED_TOPIC: Audited(_nothing),
    RequestCode.AUTH_CREATE_USER: Audited(_fields(user="username"), _user),
    RequestCode.AUTH_UPDATE_USER: Audited(_fields(user="username"), _user, hides=True),  # a secret
    RequestCode.AUTH_DELETE_USER: Audited(_fields(user="username"), _user),
    RequestCode.AUTH_CREATE_ACL: _POLICY,
    RequestCode.AUTH_UPDATE_ACL: _POLICY,
    RequestCode.AUTH_DELETE_ACL: _POLICY,
}
"""The requests that an administrator changes something with."""

NOT_AUDITED: Mapping[str, frozenset[int]] = {
    "clients do their work with it": frozenset(
        {
            *(RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2),
            *(RequestCode.SEND_BATCH_MESSAGE, RequestCode.RECALL_MESSAGE),
            *(RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE),
            *(RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE),
            *(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.NOTIFICATION),
            *(RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION),
            *(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2),
            *(RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.HEART_BEAT),
            *(RequestCode.UNREGISTER_CLIENT, RequestCode.CHECK_CLIENT_CONFIG),
            *(RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ),
        }
    ),
    "it only reads": frozenset(
        code
        for code in RequestCode
        if code.name.startswith(("GET_", "QUERY_", "VIEW_", "SEARCH_"))
        or code.name in {"AUTH_GET_USER", "AUTH_LIST_USER", "AUTH_GET_ACL", "AUTH_LIST_ACL"}
        or code
        in {
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
            RequestCode.POLLING_INFO,
            RequestCode.PEEK_MESSAGE,
            RequestCode.EXCHANGE_BROKER_HA_INFO,
            RequestCode.NOTIFY_BROKER_ROLE_CHANGED,
            RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE,
        }
    ),
}
"""Why other requests have no line."""


_RESULTS = {int(code): code.name for code in ResponseCode}


class PendingAct(NamedTuple):
    """A request that is being handled: its entry, what it names, and the values before it."""

    entry: Audited
    names: Names
    before: object


def begin(state: BrokerState, request: Request) -> PendingAct | None:
    """Look at what an audited request may change; None: it has no line.

    For strangers it reads no large body and looks at no values: they will be refused.
    """
    entry = AUDITED[request.command.code]
    names: Names | None = {}
    is_stranger = state.guard is not None and not _is_allowed_in(state.guard, request.command)
    size_max = _STRANGERS_BODY_SIZE_MAX if is_stranger else REQUEST_BODY_SIZE_MAX
    try:
        if len(request.command.body) <= size_max:
            names = entry.names(request.command)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # its handler refuses it
    if names is None:
        return None
    return PendingAct(entry, names, None if is_stranger else _seen(state, entry, names))


def _is_allowed_in(guard: Guard, command: Command) -> bool:
    try:
        guard.sender_of(command)
    except AccessRefused:
        return False
    return True


def end(state: BrokerState, request: Request, pending: PendingAct, answer: Command | None) -> None:
    """Add the line of a request. An answer that comes later is one of success."""
    entry, names, before = pending
    code = ResponseCode.SUCCESS if answer is None else answer.code
    result = _RESULTS.get(code, str(code))
    is_done = code == ResponseCode.SUCCESS
    state.audit.note(
        now_ms=request.now_ms,
        actor=request.user or NOBODY,
        address=request.connection.address,
        action=RequestCode(request.command.code).name,
        on=names,
        seen=(before, _seen(state, entry, names)) if is_done and entry.look is not None else None,
        result=result,
        is_done=is_done,
        hides=entry.hides,
        why="" if is_done or answer is None else answer.remark or "",
        claims="" if request.user else request.command.ext_fields.get(ACCESS_KEY, ""),
    )


def note_first_users(state: BrokerState, names: Sequence[str], now_ms: int) -> None:
    """Add the lines of users that the broker made of its settings when it started."""
    for name in names:
        on = {"user": name}
        state.audit.note(
            now_ms=now_ms,
            actor=NOBODY,
            address="",
            action=RequestCode.AUTH_CREATE_USER.name,
            on=on,
            seen=(None, _user(state, on)),
            result=ResponseCode.SUCCESS.name,
            is_done=True,
            why="the broker's settings name this user",
        )


def _seen(state: BrokerState, entry: Audited, names: Names) -> object:
    """Return the values of what a request names; None: it names nothing that there is."""
    if entry.look is None:
        return None
    try:
        return entry.look(state, names)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
