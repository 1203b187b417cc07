"""A broker with access control, users who sign, and requests that name what their code names."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from tests.broker_core.broker_world import TOPIC, BrokerWorld

from reliable_mq.access.resources import Kind
from reliable_mq.access.rules import CodeRule, Need
from reliable_mq.testing.memory_disk import MemoryDisk
from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.codes import ResponseCode as Code
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.request_signature import add_signature

ROOT, SECRET = "root", "a secret of root"
INIT_USER = f'{{"username":"{ROOT}","password":"{SECRET}"}}'
ON = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": INIT_USER,
}
NAMES = {Kind.TOPIC: "t", Kind.GROUP: "g"}
CLUSTER = "DefaultCluster"


class AccessWorld(BrokerWorld):
    """A broker with access control and one super user, `root`."""

    def __init__(self, disk: MemoryDisk | None = None, **properties: str) -> None:
        super().__init__(disk, **{**ON, **properties})

    def ask_as(
        self,
        user: str,
        code: int,
        ext: Mapping[str, object] | None = None,
        body: bytes = b"",
        *,
        secret: str = "",
        of: int = 1,
        version: int = 493,
    ) -> Command:
        """Send a request as a user; the secret is the usual one unless it is given."""
        fields = signed(user, code, ext, body, secret=secret, version=version)
        return self.ask(code, fields, body, of=of, version=version)

    def begin_as(
        self, user: str, code: int, ext: Mapping[str, object], body: bytes = b"", *, of: int = 1
    ) -> Command | None:
        """Send a request as a user; return its reply, None when there is none yet."""
        return self.begin(code, signed(user, code, ext, body), body, of=of)

    def make_user(self, name: str, **row: object) -> Command:
        """Create a user; the row may have userType and userStatus, or another password."""
        body = msgspec.json.encode({"username": name, "password": secret_of(name), **row})
        return self.ask_as(ROOT, Ask.AUTH_CREATE_USER, {"username": name}, body)

    def change_user(self, name: str, *, by: str = ROOT, **row: object) -> Command:
        body = msgspec.json.encode({"username": name, **row})
        return self.ask_as(by, Ask.AUTH_UPDATE_USER, {"username": name}, body)

    def allow(self, name: str, *resources: str, actions: Sequence[str] = ("All",)) -> None:
        """Let a user do something with resources."""
        assert self.put_policy(name, resources, actions).code == Code.SUCCESS

    def put_policy(
        self,
        name: str,
        resources: Sequence[str],
        actions: Sequence[str] = ("All",),
        *,
        decision: str = "Allow",
        ips: Sequence[str] | None = None,
        kind: str | None = None,
        by: str = ROOT,
    ) -> Command:
        """Add policies to a user, as mqadmin does."""
        entries = [
            {"resource": each, "actions": actions, "decision": decision, "sourceIps": ips}
            for each in resources
        ]
        policies = [{"policyType": kind, "entries": entries}]
        body = msgspec.json.encode({"subject": f"User:{name}", "policies": policies})
        return self.ask_as(by, Ask.AUTH_CREATE_ACL, {"subject": f"User:{name}"}, body)

    def create_topic_as_root(self, name: str = TOPIC) -> None:
        fields = {"topic": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
        assert self.ask_as(ROOT, Ask.UPDATE_AND_CREATE_TOPIC, fields).code == Code.SUCCESS


def signed(
    user: str,
    code: int,
    ext: Mapping[str, object] | None,
    body: bytes,
    *,
    secret: str = "",
    version: int = 493,
) -> dict[str, str]:
    """Return the fields of a request with the signature of a user."""
    fields = {name: str(value) for name, value in (ext or {}).items() if value is not None}
    command = request(code, fields, body)
    command.version = version
    add_signature(command, user, secret or secret_of(user))
    return command.ext_fields


def secret_of(user: str) -> str:
    return f"a secret of {user}"


def is_let_in(answer: Command) -> bool:
    """Whether the guard has let a request pass: a handler may refuse it with the same code."""
    return answer.code != Code.NO_PERMISSION or not any(
        text in (answer.remark or "")
        for text in (
            *("no permission to access", "username cannot be null", "check signature failed"),
            *("is not found.", "is disabled.", "only super users may", "authorization context"),
            "Authorization failed",
        )
    )


def request_of(rule: CodeRule, left_out: Need | None = None) -> tuple[dict[str, str], bytes]:
    """Return the fields and the body of a request that names what its rule knows.

    Args:
        rule: the rule of its code.
        left_out: this need is not named.
    """
    fields: dict[str, str] = {}
    body: Any = {}
    for need in rule.needs:
        if need == left_out:
            continue
        if need.in_body:
            _put(body, need.place.split("."), NAMES[need.kind])
        else:
            fields[need.place] = NAMES[need.kind]
    is_in_body = any(need.in_body for need in rule.needs)
    return fields, msgspec.json.encode(body) if is_in_body else b""


def _put(value: dict[str, Any], path: list[str], name: str) -> None:
    word, rest = path[0], path[1:]
    if not rest:
        value[word] = name
    elif word.endswith("[]"):
        inner = value.setdefault(word.removesuffix("[]"), [{}])
        _put(inner[0], rest, name)
    else:
        _put(value.setdefault(word, {}), rest, name)


def policies_for(rule: CodeRule) -> list[tuple[str, str]]:
    """Return the resources and actions that a rule needs, the first of its actions each."""
    if not rule.needs:
        return [(f"Cluster:{CLUSTER}", rule.actions[0])]
    found = {f"{need.kind}:{NAMES[need.kind]}": need.actions[0] for need in rule.needs}
    return list(found.items())
