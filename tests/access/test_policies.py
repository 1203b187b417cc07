"""Which policy decides: the most precise one that is about the request."""

import pytest

from reliable_mq.access.policies import (
    Acl,
    Action,
    acl_of,
    deciding_entry,
    merged,
    rows_of,
    without,
)
from reliable_mq.access.resources import (
    OF_ALL_TOPICS,
    Kind,
    Pattern,
    Resource,
    resource_of,
    topic_resource,
)
from reliable_mq.access.users import AccessRefused

ORDERS = Resource(Kind.TOPIC, "orders")


def policies(*lines: str) -> Acl:
    """Return policies from lines: "Topic:orders Pub,Sub Allow 10.0.0.0/8 Default"."""
    acl: Acl = {}
    for line in lines:
        resource, actions, decision, *rest = line.split()
        ips = rest[0].split(",") if rest and rest[0] != "-" else None
        row = {
            "resource": resource,
            "actions": actions.split(","),
            "decision": decision,
            "sourceIps": ips,
        }
        kind = rest[1] if rest[1:] else "Custom"
        acl = merged(acl, acl_of([{"policyType": kind, "entries": [row]}]))
    return acl


def decision(acl: Acl, resource: Resource = ORDERS, *actions: Action, ip: str = "10.0.0.1") -> str:
    entry = deciding_entry(acl, resource, actions or (Action.PUB,), ip)
    return "none" if entry is None else entry.effect


@pytest.mark.parametrize(
    ("lines", "result"),
    [
        (["Topic:orders Pub Allow"], "Allow"),
        (["Topic:orders Pub Deny"], "Deny"),
        (["Topic:orders Sub Allow"], "none"),
        (["Topic:orders All Allow"], "Allow"),
        (["Topic:order Pub Allow"], "none"),
        (["Topic:ord* Pub Allow"], "Allow"),
        (["Topic:orders* Pub Allow"], "Allow"),
        (["Topic:* Pub Allow"], "Allow"),
        (["* Pub Allow"], "Allow"),
        (["Group:orders Pub Allow", "Cluster:* All Allow"], "none"),
        (["Topic:orders Pub Allow", "Topic:ord* Pub Deny"], "Allow"),
        (["Topic:ord* Pub Allow", "Topic:o* Pub Deny"], "Allow"),
        (["Topic:o* Pub Allow", "Topic:ord* Pub Deny"], "Deny"),
        (["Topic:* Pub Deny", "Topic:o* Pub Allow"], "Allow"),
        (["* Pub Allow", "Topic:* Pub Deny"], "Deny"),
        (["* All Deny", "Topic:* Pub Allow"], "Allow"),
        (["Topic:orders Sub Deny", "Topic:* Pub Allow"], "Allow"),
    ],
)
def test_the_most_precise_policy_with_the_action_decides(lines: list[str], result: str) -> None:
    assert decision(policies(*lines)) == result
    assert decision(policies(*reversed(lines))) == result


@pytest.mark.parametrize("name", sorted(OF_ALL_TOPICS))
def test_a_topic_with_messages_of_all_topics_is_allowed_only_by_its_name(name: str) -> None:
    hidden = topic_resource(name)
    for vague in ("Topic:*", f"Topic:{name[:3]}*", f"Topic:{name}*"):
        assert decision(policies(f"{vague} Pub Allow"), hidden) == "none"
        assert decision(policies(f"{vague} Pub Deny", "* Pub Allow"), hidden) == "Deny"
    assert decision(policies(f"Topic:{name} Pub Allow"), hidden) == "Allow"
    assert decision(policies("* Pub Allow"), hidden) == "Allow", "so is every message by its place"


def test_one_of_the_actions_of_a_request_is_enough() -> None:
    acl = policies("Topic:orders Get Allow")

    assert decision(acl, ORDERS, Action.SUB, Action.GET) == "Allow"
    assert decision(acl, ORDERS, Action.SUB) == "none"


def test_default_policies_count_only_when_no_custom_policy_is_about_the_request() -> None:
    acl = policies("Topic:* Pub Deny", "Topic:orders Pub,Sub Allow - Default")

    assert decision(acl) == "Deny"
    assert decision(acl, ORDERS, Action.SUB) == "Allow"


@pytest.mark.parametrize(
    ("source", "ip", "is_covered"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("10.0.0.0/8", "10.255.0.1", True),
        ("10.9.8.7/8", "10.255.0.1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("0.0.0.0/0", "192.0.2.7", True),
        ("2001:db8::/32", "2001:db8::7", True),
        ("2001:db8::/32", "2001:db9::7", False),
        ("::/0", "10.0.0.1", False),
        ("0.0.0.0/0", "::1", False),
        ("fe80::/10", "fe80::1%eth0", True),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "10.0.0.2", False),
        ("::ffff:10.0.0.0/104", "10.255.0.1", True),
        ("::ffff:10.0.0.0/104", "11.0.0.1", False),
        ("::fffe:10.0.0.0/104", "10.255.0.1", False),
        ("10.0.0.0/8", "no address", False),
    ],
)
def test_a_policy_covers_the_addresses_that_it_names(
    source: str, ip: str, is_covered: bool
) -> None:
    acl = policies(f"Topic:* Pub Allow {source}")

    assert decision(acl, ip=ip) == ("Allow" if is_covered else "none")


def test_a_more_precise_policy_for_other_addresses_does_not_decide() -> None:
    acl = policies("Topic:orders Pub Deny 192.0.2.0/24", "Topic:* Pub Allow")

    assert decision(acl, ip="10.0.0.1") == "Allow"
    assert decision(acl, ip="192.0.2.9") == "Deny"


def test_a_new_policy_on_the_same_resource_replaces_the_old_one_in_its_place() -> None:
    acl = policies("Topic:a Pub Allow", "Topic:b Pub Allow")

    acl = merged(acl, policies("topic:a Sub Deny 10.0.0.1"))

    (row,) = rows_of(acl)
    assert row == {
        "policyType": "Custom",
        "entries": [
            {
                "actions": ["Sub"],
                "decision": "Deny",
                "resource": "Topic:a",
                "sourceIps": ["10.0.0.1"],
            },
            {"actions": ["Pub"], "decision": "Allow", "resource": "Topic:b"},
        ],
    }


def test_the_last_policy_of_a_type_takes_the_type_with_it() -> None:
    acl = policies("Topic:a Pub Allow", "Topic:b Pub Allow - Default")
    kind = next(iter(acl))

    assert [row["policyType"] for row in rows_of(without(acl, kind, topic_resource("a")))] == [
        "Default"
    ]
    assert rows_of(without(acl, kind, topic_resource("other"))) == rows_of(acl)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"resource": None}, "The resource is null."),
        ({"resource": "orders"}, "The resource is null."),
        ({"resource": 7}, "The resource is null."),
        ({"resource": "Topics:orders"}, "The resource is null."),
        ({"resource": "Topic:a\nb"}, "a resource has at most 255 printable characters"),
        ({"resource": "Topic:" + "x" * 256}, "a resource has at most 255 printable characters"),
        ({"actions": None}, "The actions is empty."),
        ({"actions": ["Fly"]}, "The actions is empty."),
        ({"actions": ["Pub", "Any"]}, "The actions can not be Any."),
        (
            {"actions": ["Pub", "Sbu"]},
            "The actions must be of All, Pub, Sub, Create, Update, Delete, Get, List.",
        ),
        ({"decision": None}, "The decision is null or illegal."),
        ({"decision": "Perhaps"}, "The decision is null or illegal."),
        ({"sourceIps": [""]}, "The source ip is empty."),
        ({"sourceIps": ["localhost"]}, "The source ip is invalid."),
        ({"sourceIps": ["10.0.0.0/33"]}, "The source ip is invalid."),
        ({"sourceIps": ["10.0.0.0/255.0.0.0"]}, "The source ip is invalid."),
        ({"sourceIps": ["10.0.0.1", 7]}, "The source ip is empty."),
        ({"sourceIps": "10.0.0.1"}, "sourceIps is a list of at most 100 addresses"),
    ],
)
def test_a_policy_that_does_not_parse_is_refused_in_apaches_words(
    change: dict[str, object], fault: str
) -> None:
    row = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow", **change}

    with pytest.raises(AccessRefused) as refused:
        acl_of([{"entries": [row]}])
    assert str(refused.value) == fault


def test_a_type_of_policies_that_does_not_exist_is_refused() -> None:
    row = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"}

    with pytest.raises(AccessRefused, match=r"policyType must be Custom or Default"):
        acl_of([{"policyType": "Defualt", "entries": [row]}])
    assert rows_of(acl_of([{"policyType": "", "entries": [row]}]))[0]["policyType"] == "Custom"


@pytest.mark.parametrize("rows", [None, [], {}, "x", [{}], [{"entries": []}], [None]])
def test_policies_without_entries_are_refused(rows: object) -> None:
    with pytest.raises(AccessRefused, match=r"The policies is empty\."):
        acl_of(rows)


def test_words_are_read_in_any_case() -> None:
    acl = policies("TOPIC:orders pub,SUB allow")

    assert decision(acl) == "Allow"
    assert decision(acl, Resource(Kind.TOPIC, "ORDERS")) == "none", "names are not"


def test_resources_are_read_as_apache_reads_them() -> None:
    assert resource_of("*") == Resource(Kind.ANY, "", Pattern.ANY)
    assert resource_of("Group:*") == Resource(Kind.GROUP, "", Pattern.ANY)
    assert resource_of("Topic:a*b*") == Resource(Kind.TOPIC, "a", Pattern.PREFIXED)
    assert resource_of("Topic:a*b") == Resource(Kind.TOPIC, "a*b")
    assert resource_of("Topic:a:b") == Resource(Kind.TOPIC, "a:b")
    assert resource_of("") is None
    for key in ("*", "Topic:orders", "Topic:ord*", "Group:*"):
        resource = resource_of(key)
        assert resource is not None
        assert resource.key == key


def test_a_retry_topic_is_its_group() -> None:
    assert topic_resource("%RETRY%payments") == Resource(Kind.GROUP, "payments")
    assert topic_resource("%RETRY%payments+orders") == Resource(Kind.GROUP, "payments")
    assert topic_resource("%DLQ%payments") == Resource(Kind.TOPIC, "%DLQ%payments")


def test_a_user_has_a_limited_number_of_policies() -> None:
    rows = [
        {"resource": f"Topic:{n}", "actions": ["Pub"], "decision": "Allow"} for n in range(1001)
    ]

    assert rows_of(acl_of([{"entries": rows[:1000]}]))
    with pytest.raises(AccessRefused, match="at most 1000 policy entries"):
        acl_of([{"entries": rows}])
