"""Which requests are audited, what each names, and which values it may change.

Receives a request before it is handled, and its answer. Adds a line to the audit. It stands outside
of the guard of access control, so a request that is refused there has a line, too.

Every code of `HANDLERS` is in `AUDITED` or in `NOT_AUDITED`, never in both.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from reliable_mq.access.guard import Guard
from reliable_mq.access.users import NOBODY, AccessRefused, username_of
from reliable_mq.broker_core.requests.audited_names import (
    NAMES_MAX,
    Names,
    fields_named,
    forbidden_named,
    nothing,
    properties_named,
    removed_threshold,
    row_named,
    rows_named,
    shown_names,
    subject_named,
)
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.limits import REQUEST_BODY_SIZE_MAX
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command
from reliable_mq.wire.java_properties import as_property
from reliable_mq.wire.request_signature import ACCESS_KEY

_QUEUES_MAX = 256
_STRANGERS_BODY_SIZE_MAX = 16_384  # bytes
HIDDEN = "***"
SECRET_NAME = re.compile(
    "password|passwd|secret|token|credential|authenticationuser", re.IGNORECASE
)


def _shows_all(_state: BrokerState, _names: Names) -> bool:
    return False


class Audited(NamedTuple):
    """One audited code.

    `names`: returns what a request names; None: this request changes nothing. `look`: returns the
    values of that, to be compared before and after; None: there are none to show. `hides`: whether
    a change may be one that the values do not show; then it counts as one.
    """

    names: Callable[[Command], Names | None]
    look: Callable[[BrokerState, Names], object] | None = None
    hides: Callable[[BrokerState, Names], bool] = _shows_all


def _has_others(_state: BrokerState, names: Names) -> bool:
    """Whether a list is longer than what is looked at."""
    return "count" in names


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


def _offsets(state: BrokerState, names: Names) -> object:
    """Return a group's offsets in a topic, by queue; without a topic, in its first topics."""
    group = names["group"]
    return {
        name: {
            str(queue_id): offset
            for queue_id, offset in sorted(state.offsets.all_of(group, name).items())[:_QUEUES_MAX]
        }
        for name in _topics_of(state, names)[:NAMES_MAX]
    }


def _topics_of(state: BrokerState, names: Names) -> list[str]:
    topic = names.get("topic", "").strip()  # a blank one is none, see CLONE_GROUP_OFFSET
    return [topic] if topic else state.offsets.topics_of(names["group"])


def _has_more_offsets(state: BrokerState, names: Names) -> bool:
    """Whether a group has more offsets than `_offsets` returns."""
    topics = _topics_of(state, names)
    sizes = (len(state.offsets.all_of(names["group"], name)) for name in topics[:NAMES_MAX])
    return len(topics) > NAMES_MAX or max(sizes, default=0) > _QUEUES_MAX


def _group_with_offsets(state: BrokerState, names: Names) -> object:
    """Return a group's settings, and its offsets if it has any; None: it has nothing."""
    settings, offsets = _group(state, names), _offsets(state, names)
    return {"settings": settings, "offsets": offsets} if offsets else settings


def _user(state: BrokerState, names: Names) -> object:
    """Return a user without its secret; a changed secret does not show."""
    table: Any = getattr(state, "access", None)
    user = table.users.get(names["user"]) if table is not None else None
    if user is None:
        return None
    return {name: value for name, value in user.row().items() if not SECRET_NAME.search(name)}


def _policies(state: BrokerState, names: Names) -> object:
    table: Any = getattr(state, "access", None)
    name = username_of(names.get("subject", ""))
    return table.acl_row(name) if table is not None and name in table.users else None


def _never_shows_all(_state: BrokerState, _names: Names) -> bool:
    """A secret does not show, nor a reset to the same offset, or one that consumers commit."""
    return True


_POLICY = Audited(subject_named, _policies)
_TOPIC_NAMED = fields_named(topic="topic")

AUDITED: Mapping[int, Audited] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: Audited(_TOPIC_NAMED, _topic),
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Audited(
        rows_named("topics", "topicConfigList", "topicName"), _topics, _has_others
    ),
    RequestCode.DELETE_TOPIC_IN_BROKER: Audited(_TOPIC_NAMED, _topic),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Audited(row_named(group="groupName"), _group),
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Audited(
        rows_named("groups", "groupConfigList", "groupName"), _groups, _has_others
    ),
    RequestCode.DELETE_SUBSCRIPTIONGROUP: Audited(
        fields_named(group="groupName", clean_offset="cleanOffset"),
        _group_with_offsets,
        _has_more_offsets,
    ),
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: Audited(forbidden_named, _readable),
    RequestCode.SET_MESSAGE_REQUEST_MODE: Audited(
        row_named(topic="topic", group="consumerGroup"), _mode
    ),
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: Audited(properties_named("groups"), _thresholds),
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: Audited(removed_threshold, _thresholds),
    RequestCode.SET_COMMITLOG_READ_MODE: Audited(nothing, _read_ahead),
    RequestCode.UPDATE_BROKER_CONFIG: Audited(properties_named("settings"), _settings),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Audited(
        fields_named(group="group", topic="topic", timestamp="timestamp"),
        _offsets,
        _never_shows_all,
    ),
    RequestCode.CLONE_GROUP_OFFSET: Audited(
        fields_named(group="destGroup", from_group="srcGroup", topic="topic"),
        _offsets,
        _has_more_offsets,
    ),
    RequestCode.CONSUME_MESSAGE_DIRECTLY: Audited(
        fields_named(group="consumerGroup", client="clientId", message_id="msgId")
    ),
    RequestCode.RESUME_CHECK_HALF_MESSAGE: Audited(fields_named(message_id="msgId")),
    RequestCode.RESET_MASTER_FLUSH_OFFSET: Audited(fields_named(offset="masterFlushOffset")),
    RequestCode.DELETE_EXPIRED_COMMITLOG: Audited(nothing),
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Audited(nothing),
    RequestCode.CLEAN_UNUSED_TOPIC: Audited(nothing),
    RequestCode.AUTH_CREATE_USER: Audited(fields_named(user="username"), _user),
    RequestCode.AUTH_UPDATE_USER: Audited(fields_named(user="username"), _user, _never_shows_all),
    RequestCode.AUTH_DELETE_USER: Audited(fields_named(user="username"), _user),
    RequestCode.AUTH_CREATE_ACL: _POLICY,
    RequestCode.AUTH_UPDATE_ACL: _POLICY,
    RequestCode.AUTH_DELETE_ACL: Audited(
        fields_named(subject="subject", resource="resource"), _policies
    ),
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
    seen = None
    if is_done and entry.look is not None:
        seen = changed_values(before, _seen(state, entry, names))
    state.audit.note(
        now_ms=request.now_ms,
        actor=request.user or NOBODY,
        address=request.connection.address,
        action=RequestCode(request.command.code).name,
        on=shown_names(names),
        seen=seen,
        result=result,
        is_done=is_done,
        hides=is_done and _hides(state, entry, names),
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


def changed_values(before: object, after: object) -> tuple[object, object]:
    """Return the values before and after a request; of many only those that differ."""
    if not isinstance(before, dict) or not isinstance(after, dict):
        return before, after
    if max(len(before), len(after)) <= NAMES_MAX:
        return before, after
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    first, second = (
        {name: each[name] for name in names if name in each} for each in (before, after)
    )
    return first, second


def _hides(state: BrokerState, entry: Audited, names: Names) -> bool:
    try:
        return entry.hides(state, names)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def _seen(state: BrokerState, entry: Audited, names: Names) -> object:
    """Return the values of what a request names; None: it names nothing that there is."""
    if entry.look is None:
        return None
    try:
        return entry.look(state, names)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
