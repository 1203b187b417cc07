"""The accounts of Apache RocketMQ 4.x, `plain_acl.yml`, as users and policies of 5.x.

    accounts:
    - accessKey: shop              becomes the user shop
      secretKey: a secret
      admin: false                 true: a super user, without policies
      defaultTopicPerm: DENY       a policy of type Default on Topic:*
      defaultGroupPerm: SUB        a policy of type Default on Group:*
      topicPerms: [orders=PUB]     a policy on Topic:orders
      groupPerms: [payments=SUB]   a policy on Group:payments

Receives the value of the file. Returns accounts, and notes about what 5.x does not have. Raises for
the first entry that cannot be read: nothing is half-taken.
Source: Apache RocketMQ `AuthMigrator`, `PlainAccessConfig`; 4.9 `Permission`. A word that 4.x does
not know means DENY there, and everything is allowed in `AuthMigrator`; here it is an error.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from reliable_mq.access.policies import Effect, PolicyType, acl_of
from reliable_mq.access.users import AccessRefused, name_fault, secret_fault
from reliable_mq.errors import ConfigurationError

_ACTIONS = {
    "PUB": ["Pub"],
    "SUB": ["Sub"],
    "PUB|SUB": ["Pub", "Sub"],
    "SUB|PUB": ["Pub", "Sub"],
    "DENY": ["All"],
}
_NO_ADDRESS = "it is left out: 5.x knows nobody by an address; give policies addresses instead"


class PlainAccount(NamedTuple):
    """One account. `policies` are rows as in requests; a super user has none."""

    username: str
    secret: str
    is_super: bool
    policies: list[dict[str, Any]]

    def __repr__(self) -> str:
        return f"PlainAccount({self.username!r})"


def plain_accounts(value: Any, name: str) -> tuple[list[PlainAccount], list[str]]:
    """Return the accounts of a file, and notes about what is left out.

    Args:
        value: the file's content, as a reader of YAML returns it.
        name: the file's name, for errors.

    Raises:
        ConfigurationError: an entry cannot be read. The text names file and entry, and shows no
            secret.
    """
    rows = value.get("accounts") if isinstance(value, dict) else None
    if not isinstance(rows, list) or not rows:
        raise ConfigurationError(f"{name}: it has no list `accounts`")
    accounts: list[PlainAccount] = []
    notes: list[str] = []
    if value.get("globalWhiteRemoteAddresses"):
        notes.append(f"{name}: globalWhiteRemoteAddresses: {_NO_ADDRESS}")
    for number, row in enumerate(rows, 1):
        account = _account(row, f"{name}: account {number}")
        if any(each.username == account.username for each in accounts):
            raise ConfigurationError(f"{name}: account {account.username!r} is there twice")
        accounts.append(account)
        if row.get("whiteRemoteAddress"):
            notes.append(f"{name}: account {account.username!r}: whiteRemoteAddress: {_NO_ADDRESS}")
    return accounts, notes


def _account(row: Any, place: str) -> PlainAccount:
    if not isinstance(row, dict):
        raise ConfigurationError(f"{place}: it is no account with accessKey and secretKey")
    username, secret = row.get("accessKey"), row.get("secretKey")
    if isinstance(username, (int, float)):  # YAML reads 0123 as 83, and yes as true
        raise ConfigurationError(f"{place}: accessKey: put the name in quotes, it is no text")
    if not isinstance(username, str) or name_fault(username):
        raise ConfigurationError(f"{place}: accessKey: write the name of a user")
    place = f"{place} ({username})"
    if isinstance(secret, (int, float)):
        raise ConfigurationError(f"{place}: secretKey: put the secret in quotes, it is no number")
    if not isinstance(secret, str) or secret_fault(secret):
        raise ConfigurationError(f"{place}: secretKey: write the user's secret")
    is_super = row.get("admin", False)
    if not isinstance(is_super, bool):
        raise ConfigurationError(f"{place}: admin: write true or false")
    policies = [] if is_super else list(_policies(row, place))
    try:
        _ = acl_of(policies) if policies else None
    except AccessRefused as error:
        raise ConfigurationError(f"{place}: {error}") from error
    return PlainAccount(username, secret, is_super, policies)


def _policies(row: dict[str, Any], place: str) -> Iterator[dict[str, Any]]:
    entries = [
        *_entries(row, "topicPerms", "Topic", place),
        *_entries(row, "groupPerms", "Group", place),
    ]
    if entries:
        yield {"policyType": PolicyType.CUSTOM, "entries": entries}
    defaults = [
        _entry(f"{kind}:*", row[field], f"{place}: {field}")
        for field, kind in (("defaultTopicPerm", "Topic"), ("defaultGroupPerm", "Group"))
        if row.get(field)
    ]
    if defaults:
        yield {"policyType": PolicyType.DEFAULT, "entries": defaults}


def _entries(row: dict[str, Any], field: str, kind: str, place: str) -> Iterator[dict[str, Any]]:
    listed = row.get(field) or []
    if not isinstance(listed, list):
        raise ConfigurationError(f"{place}: {field}: write a list of NAME=PERMISSION")
    for each in listed:
        name, sign, word = each.partition("=") if isinstance(each, str) else ("", "", "")
        name = name.strip()
        if not sign or not name:
            raise ConfigurationError(f"{place}: {field}: {each!r:.80}: write NAME=PERMISSION")
        if name.endswith("*"):
            raise ConfigurationError(
                f"{place}: {field}: {each!r:.80}: 4.x has no prefixes, in 5.x this would be one"
            )
        yield _entry(f"{kind}:{name}", word, f"{place}: {field}: {name}")


def _entry(resource: str, word: Any, place: str) -> dict[str, Any]:
    actions = _ACTIONS.get(word.strip()) if isinstance(word, str) else None
    if actions is None:
        raise ConfigurationError(f"{place}: {word!r:.40}: write {', '.join(_ACTIONS)}")
    effect = Effect.DENY if word.strip() == "DENY" else Effect.ALLOW
    return {"resource": resource, "actions": actions, "decision": effect}
