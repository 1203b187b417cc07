"""Users and policies: create, change, delete and show them.

Differences to Apache: a secret is shown to super users only; the last super user stays; a text that
names no resource does not delete all policies.
Source: Apache RocketMQ `AdminBrokerProcessor`, `UserConverter`, `AclConverter`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from reliable_mq.access.access_table import NO_USER, PATH, AccessTable
from reliable_mq.access.policies import Acl, PolicyType, acl_of
from reliable_mq.access.resources import resource_of
from reliable_mq.access.users import (
    AccessRefused,
    User,
    UserChange,
    subject_in,
    user_change_of,
    username_of,
)
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.peer_texts import read_json
from reliable_mq.wire.request_signature import ACCESS_KEY

_OFF = "access control is off at this broker: set authenticationEnabled=true, and start it again"
_BLANK = "The username is blank"
_ONLY_BY_SUPER = "The super user can only be {} by super user"


def create_user(state: BrokerState, request: Request) -> None:
    """AUTH_CREATE_USER."""
    table, name = _table(state), _named_user(request)
    change = _change_in(request)
    if change.user_type is not None and change.user_type.is_super:
        _refuse_others(state, request, "create", ResponseCode.SYSTEM_ERROR)
    _save(state, request, lambda: table.create_user(name, change))


def update_user(state: BrokerState, request: Request) -> None:
    """AUTH_UPDATE_USER."""
    table, name = _table(state), _named_user(request)
    change = _change_in(request)
    if change.user_type is not None and change.user_type.is_super:
        _refuse_others(state, request, "update", ResponseCode.SYSTEM_ERROR)
    known = table.users.get(name)
    if known is None:
        raise RequestRefused(ResponseCode.NO_PERMISSION, NO_USER)
    if known.is_super:
        _refuse_others(state, request, "update", ResponseCode.NO_PERMISSION)
    _save(state, request, lambda: table.update_user(name, change))


def delete_user(state: BrokerState, request: Request) -> None:
    """AUTH_DELETE_USER: delete a user and its policies."""
    table, name = _table(state), request.command.ext_fields.get("username", "")
    if not name.strip():
        raise RequestRefused(ResponseCode.NO_PERMISSION, "username can not be blank")
    known = table.users.get(name)
    if known is not None and known.is_super:
        _refuse_others(state, request, "update", ResponseCode.NO_PERMISSION)
    _save(state, request, lambda: table.delete_user(name))


def get_user(state: BrokerState, request: Request) -> Command:
    """AUTH_GET_USER: a user that does not exist has an empty answer."""
    table, name = _table(state), request.command.ext_fields.get("username", "")
    if not name.strip():
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, _BLANK)
    user = table.users.get(name)
    return _shown(request, _user_row(user, state, request) if user is not None else None)


def list_users(state: BrokerState, request: Request) -> Command:
    """AUTH_LIST_USER: the users whose names have the text `filter`."""
    part = request.command.ext_fields.get("filter", "").strip()
    users = _table(state).list_users(part)
    return _shown(request, [_user_row(user, state, request) for user in users])


def create_acl(state: BrokerState, request: Request) -> None:
    """AUTH_CREATE_ACL and AUTH_UPDATE_ACL: add policies, or replace those on the same resource."""
    table = _table(state)
    row = read_json(request.command.body) if request.command.body else None
    policies = row.get("policies") if isinstance(row, dict) else None
    if not isinstance(row, dict) or not policies:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "The body of acl is null")
    subject = subject_in(row, request.command.ext_fields)
    name = username_of(subject) if isinstance(subject, str) else None
    if name is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the subject must be User:NAME")

    def put() -> None:
        acl: Acl = acl_of(policies)
        table.put_acl(name, acl)

    _save(state, request, put)


def delete_acl(state: BrokerState, request: Request) -> None:
    """AUTH_DELETE_ACL: delete a user's policy on a resource, or all of its policies."""
    table, ext = _table(state), request.command.ext_fields
    name = _username_in(request)
    named = ext.get("resource", "").strip()
    resource = resource_of(named)
    if named and resource is None:
        raise RequestRefused(ResponseCode.NO_PERMISSION, "The resource is null.")
    wanted = ext.get("policyType", "").lower()
    kind = PolicyType.DEFAULT if wanted == PolicyType.DEFAULT.lower() else PolicyType.CUSTOM
    _save(state, request, lambda: table.delete_acl(name, kind, resource))


def get_acl(state: BrokerState, request: Request) -> Command:
    """AUTH_GET_ACL: a user without policies has an empty answer."""
    table = _table(state)
    try:
        return _shown(request, table.acl_row(_username_in(request)))
    except AccessRefused as error:
        raise RequestRefused(ResponseCode.NO_PERMISSION, str(error)) from error


def list_acls(state: BrokerState, request: Request) -> Command:
    """AUTH_LIST_ACL: policies, limited to parts of subjects and resources."""
    ext = request.command.ext_fields
    subject, resource = ext.get("subjectFilter", ""), ext.get("resourceFilter", "")
    return _shown(request, _table(state).list_acls(subject.strip(), resource.strip()))


def _table(state: BrokerState) -> AccessTable:
    """Return the table, if access control is on: without it, anybody could read the secrets."""
    if state.guard is None:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, _OFF)
    return state.access


def _named_user(request: Request) -> str:
    name = request.command.ext_fields.get("username", "")
    if not name:
        raise RequestRefused(ResponseCode.INVALID_PARAMETER, _BLANK)
    return name


def _change_in(request: Request) -> UserChange:
    body = request.command.body
    try:
        row = read_json(body) if body else None
    except ValueError:  # its text shows a part of the body, perhaps the secret
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, "the body of user is no JSON") from None
    try:
        return user_change_of(row)
    except AccessRefused as error:
        raise RequestRefused(ResponseCode.SYSTEM_ERROR, str(error)) from error


def _username_in(request: Request) -> str:
    name = username_of(request.command.ext_fields.get("subject", ""))
    if name is None:
        raise RequestRefused(ResponseCode.NO_PERMISSION, "The subject is null.")
    return name


def _is_by_super(state: BrokerState, request: Request) -> bool:
    """Whether a super user sends a request. Its signature was checked: see `access_settings`."""
    sender = state.access.users.get(request.command.ext_fields.get(ACCESS_KEY, ""))
    return sender is not None and sender.is_super


def _refuse_others(state: BrokerState, request: Request, verb: str, code: ResponseCode) -> None:
    if not _is_by_super(state, request):
        raise RequestRefused(code, _ONLY_BY_SUPER.format(verb))


def _user_row(user: User, state: BrokerState, request: Request) -> dict[str, str]:
    row = user.row()
    if not _is_by_super(state, request):
        del row["password"]
    return row


def _save(state: BrokerState, request: Request, change: Callable[[], None]) -> None:
    """Make a change, and answer when the file of users and policies has it."""
    state.pressure.check_tables()
    try:
        change()
    except AccessRefused as error:
        raise RequestRefused(ResponseCode.NO_PERMISSION, str(error)) from error
    state.files.change(PATH, state.access.dump)
    state.reply_when_saved(request, reply(request.command))


def _shown(request: Request, rows: Any) -> Command:
    return reply(request.command, body=msgspec.json.encode(rows) if rows else b"")
