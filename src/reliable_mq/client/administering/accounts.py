"""Users of brokers with access control, and their policies: lists and changes them.

Source: Apache RocketMQ `UserInfo`, `AclInfo`.
"""

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import msgspec

from reliable_mq.client.administering.cluster_reply import (
    AdminTarget,
    ClusterReply,
    all_brokers,
    ask_all,
    ask_each,
    check_found,
    decoded,
    first_failure,
    nothing,
)
from reliable_mq.client.flow import Flow
from reliable_mq.decodable import decodable
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request

_KINDS = ("Custom", "Default")


@decodable
class PolicyLine(msgspec.Struct, frozen=True, kw_only=True):
    """One policy of a user at a broker. `sources`: addresses; empty: every address."""

    resource: str
    actions: list[str] = []
    decision: str = "Allow"
    sources: list[str] | None = msgspec.field(name="sourceIps", default=None)


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A user at a broker, without its secret, and its policies."""

    username: str
    is_super: bool
    is_enabled: bool
    policies: list[PolicyLine] = []


@decodable
class _User(msgspec.Struct, rename="camel"):
    username: str
    user_type: str = "Normal"
    user_status: str = "enable"


@decodable
class _Policy(msgspec.Struct):
    entries: list[PolicyLine] | None = None
    kind: str = msgspec.field(name="policyType", default="Custom")


@decodable
class _Acl(msgspec.Struct):
    subject: str
    policies: list[_Policy] | None = None


def accounts(cluster: AdminTarget) -> Flow[ClusterReply[dict[str, list[Account]]]]:
    """Return the users of each broker with their policies, by broker name.

    Raises:
        NoRoute: when the name servers know no broker.
        RemoteError, Unavailable, ProtocolError: when no broker answers.
    """
    brokers = yield from all_brokers(cluster)
    users = yield from ask_all(
        cluster, brokers, request(RequestCode.AUTH_LIST_USER), _read_users, masters_only=True
    )
    acls = yield from ask_all(
        cluster, brokers, request(RequestCode.AUTH_LIST_ACL), _read_acls, masters_only=True
    )
    failures = {**acls.failures, **users.failures}
    found = {
        name: [
            Account(
                username=user.username,
                is_super=user.user_type == "Super",
                is_enabled=user.user_status == "enable",
                policies=acls.value[name].get(user.username, []),
            )
            for user in listed
        ]
        for name, listed in users.value.items()
        if name in acls.value
    }
    if not found and failures:
        raise first_failure(failures)
    return ClusterReply(found, failures)


def add(
    cluster: AdminTarget,
    username: str,
    secret: str,
    *,
    is_super: bool = False,
    policies: Sequence[Any] = (),
    only: Collection[str] = (),
    dry_run: bool = False,
) -> Flow[ClusterReply[list[str]]]:
    """Add a user with policies at all masters; return where, by broker name.

    A broker that has the user keeps it. It gets the policies only if the user has none there.

    Args:
        cluster: the cluster to ask.
        username: the user's name.
        secret: its secret.
        is_super: whether it may do everything.
        policies: rows as in `config/access.json`.
        only: names of brokers; empty: all.
        dry_run: return where it would be added, but add nothing.

    Raises:
        NoRoute: when the name servers know no broker.
        RemoteError, Unavailable, ProtocolError: when no broker adds it.
    """
    brokers = yield from all_brokers(cluster, only)
    subject = {"subject": f"User:{username}"}
    ask_user = request(RequestCode.AUTH_GET_USER, {"username": username})
    known = yield from ask_all(cluster, brokers, ask_user, _has_body, masters_only=True)
    failures = dict(known.failures)
    present = [name for name, is_there in known.value.items() if is_there]
    get_acl = request(RequestCode.AUTH_GET_ACL, subject)
    having = yield from ask_each(
        cluster, brokers, dict.fromkeys(present, get_acl), _has_body, masters_only=True
    )
    failures |= having.failures
    new = [name for name, is_there in known.value.items() if not is_there]
    bare = [name for name, has in having.value.items() if not has] if policies else []
    if not dry_run:
        row = {"password": secret, "userType": "Super" if is_super else "Normal"}
        body = msgspec.json.encode({"username": username, **row})
        make = request(RequestCode.AUTH_CREATE_USER, {"username": username}, body)
        made = yield from ask_each(
            cluster, brokers, dict.fromkeys(new, make), nothing, masters_only=True
        )
        new, failures = list(made.value), failures | made.failures
        if policies:
            body = msgspec.json.encode({**subject, "policies": policies})
            put = request(RequestCode.AUTH_CREATE_ACL, subject, body)
            commands = dict.fromkeys([*new, *bare], put)
            done = yield from ask_each(cluster, brokers, commands, nothing, masters_only=True)
            failures |= done.failures
    if failures and not known.value:
        raise first_failure(failures)
    return ClusterReply(sorted({*new, *bare} - failures.keys()), failures)


def change(
    cluster: AdminTarget,
    username: str,
    *,
    secret: str = "",
    is_enabled: bool | None = None,
    is_super: bool | None = None,
    only: Collection[str] = (),
    dry_run: bool = False,
) -> Flow[ClusterReply[list[str]]]:
    """Change a user at all masters that have it; return where, by broker name.

    Args:
        cluster: the cluster to ask.
        username: the user's name.
        secret: its new secret; "": as it was.
        is_enabled: whether it may do anything; None: as it was.
        is_super: whether it may do everything; None: as it was.
        only: names of brokers; empty: all.
        dry_run: return where it would be done, but do nothing.

    Raises:
        NotFound: when no broker has the user.
        NoRoute: when the name servers know no broker.
        RemoteError, Unavailable, ProtocolError: when no broker does it.
    """
    row = {"username": username}
    if secret:
        row["password"] = secret
    if is_enabled is not None:
        row["userStatus"] = "enable" if is_enabled else "disable"
    if is_super is not None:
        row["userType"] = "Super" if is_super else "Normal"
    body = msgspec.json.encode(row)
    update = request(RequestCode.AUTH_UPDATE_USER, {"username": username}, body)
    return (yield from _change(cluster, username, update, only=only, dry_run=dry_run))


def grant(
    cluster: AdminTarget,
    username: str,
    policies: Sequence[Any],
    *,
    only: Collection[str] = (),
    dry_run: bool = False,
) -> Flow[ClusterReply[list[str]]]:
    """Give a user policies at all masters that have it; return where, by broker name.

    Args:
        cluster: the cluster to ask.
        username: the user's name.
        policies: rows as in `config/access.json`; those on the same resource are replaced.
        only: names of brokers; empty: all.
        dry_run: return where it would be done, but do nothing.

    Raises:
        NotFound: when no broker has the user.
        NoRoute: when the name servers know no broker.
        RemoteError, Unavailable, ProtocolError: when no broker does it.
    """
    subject = {"subject": f"User:{username}"}
    body = msgspec.json.encode({**subject, "policies": list(policies)})
    put = request(RequestCode.AUTH_CREATE_ACL, subject, body)
    return (yield from _change(cluster, username, put, only=only, dry_run=dry_run))


def revoke(
    cluster: AdminTarget,
    username: str,
    resource: str,
    *,
    only: Collection[str] = (),
    dry_run: bool = False,
) -> Flow[ClusterReply[list[str]]]:
    """Remove a user's policy on a resource at all masters that have it; return where.

    Args:
        cluster: the cluster to ask.
        username: the user's name.
        resource: the resource of the policy, such as "Topic:orders".
        only: names of brokers; empty: all.
        dry_run: return where it would be done, but do nothing.

    Raises:
        NotFound: when no broker has the policy.
        NoRoute: when the name servers know no broker.
        RemoteError, Unavailable, ProtocolError: when no broker does it.
    """
    subject = {"subject": f"User:{username}"}
    brokers = yield from all_brokers(cluster, only)
    get = request(RequestCode.AUTH_GET_ACL, subject)
    kinds_on = partial(_kinds_on, resource)
    answers = yield from ask_all(cluster, brokers, get, kinds_on, masters_only=True)
    there = {name: kinds for name, kinds in answers.value.items() if kinds}
    what = f"no broker has a policy of {username} on {resource}"
    known = check_found(ClusterReply(there, answers.failures), what)
    failures = dict(known.failures)
    for kind in () if dry_run else _KINDS:
        fields = {**subject, "resource": resource, "policyType": kind}
        delete = request(RequestCode.AUTH_DELETE_ACL, fields)
        having = [name for name, kinds in known.value.items() if kind in kinds]
        done = yield from ask_each(
            cluster, brokers, dict.fromkeys(having, delete), nothing, masters_only=True
        )
        failures |= done.failures
    names = sorted(known.value.keys() - failures.keys())
    if failures and not names:
        raise first_failure(failures)
    return ClusterReply(names, failures)


def remove(
    cluster: AdminTarget, username: str, *, only: Collection[str] = (), dry_run: bool = False
) -> Flow[ClusterReply[list[str]]]:
    """Remove a user and its policies at all masters; return where it was, by broker name.

    Args:
        cluster: the cluster to ask.
        username: the user's name.
        only: names of brokers; empty: all.
        dry_run: return where it would be done, but do nothing.

    Raises:
        NotFound: when no broker has the user.
        NoRoute: when the name servers know no broker.
        RemoteError, Unavailable, ProtocolError: when no broker does it.
    """
    delete = request(RequestCode.AUTH_DELETE_USER, {"username": username})
    return (yield from _change(cluster, username, delete, only=only, dry_run=dry_run))


def _change(
    cluster: AdminTarget,
    username: str,
    command: Command,
    *,
    only: Collection[str],
    dry_run: bool,
) -> Flow[ClusterReply[list[str]]]:
    """Send a command to the masters that have a user; return where it was done."""
    brokers = yield from all_brokers(cluster, only)
    ask_user = request(RequestCode.AUTH_GET_USER, {"username": username})
    answers = yield from ask_all(cluster, brokers, ask_user, _has_body, masters_only=True)
    there = {name: None for name, is_there in answers.value.items() if is_there}
    known = check_found(ClusterReply(there, answers.failures), f"no broker has the user {username}")
    names, failures = sorted(known.value), known.failures
    if not dry_run:
        commands = dict.fromkeys(names, command)
        done = yield from ask_each(cluster, brokers, commands, nothing, masters_only=True)
        names, failures = sorted(done.value), {**failures, **done.failures}
        if not names:
            raise first_failure(failures)
    return ClusterReply(names, failures)


def _has_body(reply: Command) -> bool:
    return bool(reply.body)


def _read_users(reply: Command) -> list[_User]:
    return decoded(reply, list[_User], "the users") if reply.body else []


def _read_acls(reply: Command) -> dict[str, list[PolicyLine]]:
    acls = decoded(reply, list[_Acl], "the policies") if reply.body else []
    return {acl.subject.partition(":")[2]: _lines(acl) for acl in acls}


def _kinds_on(resource: str, reply: Command) -> list[str]:
    """Return the types of a user's policies on a resource."""
    acl = decoded(reply, _Acl, "the policies") if reply.body else _Acl(subject="")
    return [
        policy.kind
        for policy in acl.policies or ()
        if any(line.resource == resource for line in policy.entries or ())
    ]


def _lines(acl: _Acl) -> list[PolicyLine]:
    return [line for policy in acl.policies or () for line in policy.entries or ()]
