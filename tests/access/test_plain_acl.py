"""Accounts of Apache RocketMQ 4.x become users and policies, all of a file or none."""

import pytest
import yaml

from reliable_mq.access.plain_acl import PlainAccount, plain_accounts
from reliable_mq.access.policies import acl_of, rows_of
from reliable_mq.errors import ConfigurationError

FILE = """
globalWhiteRemoteAddresses:
- 10.10.103.*

accounts:
- accessKey: RocketMQ
  secretKey: "12345678"
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  # the group should convert to retry topic
  - groupA=DENY
  - groupB=PUB|SUB
  - groupC=SUB

- accessKey: rocketmq2
  secretKey: "abcdefgh"
  whiteRemoteAddress: 192.168.1.*
  # if it is admin, it could access all resources
  admin: true
"""


def read(text: str) -> tuple[list[PlainAccount], list[str]]:
    return plain_accounts(yaml.safe_load(text), "plain_acl.yml")


def test_the_example_of_apache_is_read() -> None:
    (shop, boss), notes = read(FILE)

    assert (shop.username, shop.secret, shop.is_super) == ("RocketMQ", "12345678", False)
    lines = [
        " ".join((policy["policyType"], row["decision"], ",".join(row["actions"]), row["resource"]))
        for policy in shop.policies
        for row in policy["entries"]
    ]
    assert lines == [
        "Custom Deny All Topic:topicA",
        "Custom Allow Pub,Sub Topic:topicB",
        "Custom Allow Sub Topic:topicC",
        "Custom Deny All Group:groupA",
        "Custom Allow Pub,Sub Group:groupB",
        "Custom Allow Sub Group:groupC",
        "Default Deny All Topic:*",
        "Default Allow Sub Group:*",
    ]
    assert rows_of(acl_of(shop.policies)), "a broker takes them"
    assert (boss.username, boss.is_super, boss.policies) == ("rocketmq2", True, [])
    assert len(notes) == 2
    assert "globalWhiteRemoteAddresses" in notes[0]
    assert "'rocketmq2': whiteRemoteAddress" in notes[1]


ACCOUNT = {"accessKey": "shop", "secretKey": "a hidden secret"}


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (None, "plain_acl.yml: it has no list `accounts`"),
        ([], "plain_acl.yml: it has no list `accounts`"),
        ({"accounts": None}, "plain_acl.yml: it has no list `accounts`"),
        ({"accounts": "shop"}, "plain_acl.yml: it has no list `accounts`"),
        ({"accounts": ["shop"]}, "account 1: it is no account with accessKey and secretKey"),
        ({"accounts": [{**ACCOUNT, "accessKey": None}]}, "account 1: accessKey: write the name"),
        ({"accounts": [{**ACCOUNT, "accessKey": "a\nb"}]}, "account 1: accessKey: write the name"),
        ({"accounts": [{**ACCOUNT, "secretKey": None}]}, "account 1 (shop): secretKey: write"),
        ({"accounts": [{**ACCOUNT, "secretKey": 123456}]}, "(shop): secretKey: put the secret in"),
        ({"accounts": [{**ACCOUNT, "admin": "yes"}]}, "account 1 (shop): admin: write true or"),
        ({"accounts": [ACCOUNT, ACCOUNT]}, "account 'shop' is there twice"),
        ({"accounts": [{**ACCOUNT, "topicPerms": "a=PUB"}]}, "topicPerms: write a list of"),
        ({"accounts": [{**ACCOUNT, "topicPerms": ["a"]}]}, "topicPerms: 'a': write NAME=PERM"),
        ({"accounts": [{**ACCOUNT, "topicPerms": [{"a": 1}]}]}, "write NAME=PERMISSION"),
        ({"accounts": [{**ACCOUNT, "topicPerms": ["=PUB"]}]}, "write NAME=PERMISSION"),
        ({"accounts": [{**ACCOUNT, "groupPerms": ["g=ANY"]}]}, "groupPerms: g: 'ANY': write PUB"),
        ({"accounts": [{**ACCOUNT, "groupPerms": ["*=SUB"]}]}, "4.x has no prefixes"),
        ({"accounts": [{**ACCOUNT, "defaultTopicPerm": "pub"}]}, "defaultTopicPerm: 'pub': write"),
        ({"accounts": [{**ACCOUNT, "defaultTopicPerm": 7}]}, "defaultTopicPerm: 7: write PUB"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named_and_nothing_is_taken(
    value: object, fault: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        plain_accounts(value, "plain_acl.yml")
    text = str(refused.value)
    assert text.startswith("plain_acl.yml: ")
    assert fault in text
    assert "hidden" not in text
    assert "123456" not in text
    assert "\n" not in text


@pytest.mark.parametrize("name", ["4711", "0123", "1_000", "1:30", "yes", "1.5"])
def test_a_name_that_yaml_takes_for_something_else_needs_quotes(name: str) -> None:
    """YAML reads 0123 as 83, so that a user with another name would be made."""
    text = "accounts:\n- accessKey: {}\n  secretKey: a hidden secret\n"
    with pytest.raises(ConfigurationError, match="accessKey: put the name in quotes"):
        read(text.format(name))

    ((account,), _) = read(text.format(f'"{name}"'))
    assert account.username == name
    assert "hidden" not in repr(account)
