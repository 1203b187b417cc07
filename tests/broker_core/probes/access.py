"""What known and unknown senders ask of brokers with access control, and what administrators do."""

from collections.abc import Iterator
from typing import NamedTuple

from tests.access.access_world import ROOT, SECRET, secret_of
from tests.broker_core.probes.asking import (
    GROUP,
    TOPIC,
    Probe,
    body_of,
    heartbeat,
    locking,
    pulling,
    queue,
    sending,
    topic,
)

from reliable_mq.wire.codes import RequestCode as Ask
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.request_signature import ACCESS_KEY, SIGNATURE, add_signature

NOBODY = ""
OFF = [
    Probe(
        f"{code.name} without access control",
        code,
        {"username": "u", "subject": "User:u"},
        is_bug_there=True,
    )
    for code in Ask
    if code.name.startswith("AUTH_")
]


class SignedProbe(NamedTuple):
    """A probe, its sender and the secret that signs; "": the usual secret of the user.

    `forged` fields are added after the signature.
    """

    probe: Probe
    user: str = NOBODY
    secret: str = ""
    forged: tuple[tuple[str, str], ...] = ()

    def command(self) -> Command:
        fields = {k: str(v) for k, v in self.probe.ext.items() if v is not None}
        command = request(self.probe.code, fields, self.probe.body)
        if self.user:
            usual = SECRET if self.user == ROOT else secret_of(self.user)
            add_signature(command, self.user, self.secret or usual)
        command.ext_fields.update(self.forged)
        return command


def _user(name: str, **row: object) -> tuple[dict[str, object], bytes]:
    return {"username": name}, body_of({"username": name, **row})


def _acl(
    subject: str,
    *resources: object,
    actions: object = ("Pub",),
    decision: object = "Allow",
    ips: object = None,
    kind: object = None,
) -> tuple[dict[str, object], bytes]:
    entries = [
        {"resource": each, "actions": actions, "decision": decision, "sourceIps": ips}
        for each in resources
    ]
    body = {"subject": subject, "policies": [{"policyType": kind, "entries": entries}]}
    return {"subject": subject}, body_of(body)


def _by(user: str, name: str, code: int, *more: object, **options: object) -> SignedProbe:
    return SignedProbe(Probe(f"{user or 'nobody'}: {name}", code, *more, **options), user)  # type: ignore[arg-type]


def _root(name: str, code: int, *more: object, **options: object) -> SignedProbe:
    return _by(ROOT, name, code, *more, **options)


def _shown(number: int) -> Iterator[SignedProbe]:
    """Show all users and policies."""
    yield _root(f"all users, {number}", Ask.AUTH_LIST_USER, {}, shows_body=True)
    yield _root(f"all policies, {number}", Ask.AUTH_LIST_ACL, {}, shows_body=True)


def _uses(user: str, when: str, *, may_not_see: bool = False) -> Iterator[SignedProbe]:
    """Do what clients do. `may_not_see`: the group is allowed, the topic of the message is not."""
    differs = _CLAIM if may_not_see else ""
    yield _by(user, f"sends {when}", Ask.SEND_MESSAGE_V2, sending(), b"x")
    yield _by(user, f"sends by its long header {when}", Ask.SEND_MESSAGE, _LONG_SEND, b"x")
    yield _by(user, f"pulls {when}", Ask.PULL_MESSAGE, pulling())
    yield _by(user, f"lives {when}", Ask.HEART_BEAT, {}, body_of(heartbeat(TOPIC)))
    yield _by(user, f"asks for its offset {when}", Ask.QUERY_CONSUMER_OFFSET, _OFFSET)
    yield _by(user, f"commits {when}", Ask.UPDATE_CONSUMER_OFFSET, {**_OFFSET, "commitOffset": 0})
    yield _by(user, f"asks for the end {when}", Ask.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 0})
    yield _by(user, f"locks {when}", Ask.LOCK_BATCH_MQ, {}, locking("c", queue()))
    yield _by(user, f"asks for members {when}", Ask.GET_CONSUMER_LIST_BY_GROUP, _GROUP)
    yield _by(user, f"sends back {when}", Ask.CONSUMER_SEND_MSG_BACK, _BACK, differs=differs)
    yield _by(user, f"makes a topic {when}", Ask.UPDATE_AND_CREATE_TOPIC, topic("fresh"))
    yield _by(user, f"deletes a topic {when}", Ask.DELETE_TOPIC_IN_BROKER, {"topic": "fresh"})
    yield _by(user, f"asks who produces {when}", Ask.GET_ALL_PRODUCER_INFO, {})
    yield _by(user, f"leaves {when}", Ask.UNREGISTER_CLIENT, {"clientID": "c", **_GROUP})


_OPEN = "Apache has no rule for it"
_CLAIM = "Apache believes the topic that the request names"
_LONG_SEND = {
    "producerGroup": "producers",
    "topic": TOPIC,
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": 4,
    "queueId": 0,
    "sysFlag": 0,
    "bornTimestamp": 1_700_000_000_000,
    "flag": 0,
}
_GROUP = {"consumerGroup": GROUP}
_OFFSET = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
_BACK = {"offset": 0, "group": GROUP, "delayLevel": 1, "originTopic": TOPIC}

UNKNOWN = [
    SignedProbe(Probe("nobody sends", Ask.SEND_MESSAGE_V2, sending(), b"x")),
    SignedProbe(Probe("nobody asks without fields", Ask.GET_BROKER_CONFIG)),
    SignedProbe(Probe("nobody asks for what there is not", 99_999, {"a": "b"})),
    SignedProbe(Probe("a stranger sends", Ask.SEND_MESSAGE_V2, sending(), b"x"), "stranger"),
    SignedProbe(
        Probe("a wrong secret", Ask.SEND_MESSAGE_V2, sending(), b"x"), ROOT, "another secret"
    ),
    SignedProbe(
        Probe("a forged field", Ask.SEND_MESSAGE_V2, sending(), b"x"), ROOT, forged=(("b", "c"),)
    ),
    SignedProbe(
        Probe("a field too many", Ask.SEND_MESSAGE_V2, sending(), b"x"), ROOT, forged=(("z", "1"),)
    ),
    SignedProbe(Probe("no signature", Ask.SEND_MESSAGE_V2, {**sending(), ACCESS_KEY: ROOT}, b"x")),
    SignedProbe(
        Probe("an empty name", Ask.SEND_MESSAGE_V2, sending(), b"x"),
        ROOT,
        forged=((ACCESS_KEY, ""),),
    ),
    SignedProbe(
        Probe("an empty signature", Ask.SEND_MESSAGE_V2, sending(), b"x"),
        ROOT,
        forged=((SIGNATURE, ""),),
    ),
]
USERS = [
    _root("makes a topic", Ask.UPDATE_AND_CREATE_TOPIC, topic(TOPIC)),
    _root("makes joe", Ask.AUTH_CREATE_USER, *_user("joe", password=secret_of("joe"))),
    _root("makes joe again", Ask.AUTH_CREATE_USER, *_user("joe", password="other")),
    _root(
        "makes ann", Ask.AUTH_CREATE_USER, *_user("ann", password="pw", userType="super", more=7)
    ),
    _root("a user without a name", Ask.AUTH_CREATE_USER, {}, _user("x", password="pw")[1]),
    _root("a user with a blank name", Ask.AUTH_CREATE_USER, *_user(" ", password="pw")),
    _root("a user without a secret", Ask.AUTH_CREATE_USER, *_user("bob")),
    _root("a user with a blank secret", Ask.AUTH_CREATE_USER, *_user("bob", password=" ")),
    _root("a user with an odd name", Ask.AUTH_CREATE_USER, *_user("odd name: ä", password="pw")),
    _root("a user without a body", Ask.AUTH_CREATE_USER, {"username": "bob"}, is_bug_there=True),
    *_shown(1),
    _root("shows joe", Ask.AUTH_GET_USER, {"username": "joe"}, shows_body=True),
    _root("shows nobody", Ask.AUTH_GET_USER, {"username": "nobody"}, shows_body=True),
    _root("shows a user without a name", Ask.AUTH_GET_USER, {}),
    _root("shows users with o", Ask.AUTH_LIST_USER, {"filter": "o"}, shows_body=True),
    _root("shows users with zzz", Ask.AUTH_LIST_USER, {"filter": "zzz"}, shows_body=True),
    _root("changes nobody", Ask.AUTH_UPDATE_USER, *_user("nobody", password="pw")),
    _root("changes no name", Ask.AUTH_UPDATE_USER, {}, _user("joe", password="pw")[1]),
    _root("changes ann's secret", Ask.AUTH_UPDATE_USER, *_user("ann", password="new")),
    _root("changes ann's type", Ask.AUTH_UPDATE_USER, *_user("ann", userType="Normal")),
    _root("changes ann's status", Ask.AUTH_UPDATE_USER, *_user("ann", userStatus="disable")),
    _root("changes ann's secret to nothing", Ask.AUTH_UPDATE_USER, *_user("ann", password=" ")),
    *_shown(2),
    _by("ann", "is disabled", Ask.GET_ALL_PRODUCER_INFO, {}, is_bug_there=True),
    _root("deletes nobody", Ask.AUTH_DELETE_USER, {"username": "nobody"}),
    _root("deletes no name", Ask.AUTH_DELETE_USER, {}),
    _root("deletes ann", Ask.AUTH_DELETE_USER, {"username": "ann"}),
    *_shown(3),
]
POLICIES = [
    *_uses("joe", "without policies"),
    _root("no policies of joe", Ask.AUTH_GET_ACL, {"subject": "User:joe"}, shows_body=True),
    _root("policies of nobody", Ask.AUTH_GET_ACL, {"subject": "User:nobody"}, shows_body=True),
    _root("policies of no user", Ask.AUTH_GET_ACL, {"subject": "joe"}),
    _root("policies of a group", Ask.AUTH_GET_ACL, {"subject": "Group:joe"}),
    _root("deletes policies of no user", Ask.AUTH_DELETE_ACL, {"subject": "joe"}),
    _root("policies for no user", Ask.AUTH_CREATE_ACL, *_acl("joe", "Topic:a"), is_bug_there=True),
    _root("policies of an empty name", Ask.AUTH_GET_ACL, {"subject": "User:"}),
    _root("policies for nobody", Ask.AUTH_CREATE_ACL, *_acl("User:nobody", "Topic:a")),
    _root(
        "a policy without a body", Ask.AUTH_CREATE_ACL, {"subject": "User:joe"}, is_bug_there=True
    ),
    _root("a policy on nothing", Ask.AUTH_CREATE_ACL, *_acl("User:joe", "nothing")),
    _root(
        "a policy without actions", Ask.AUTH_CREATE_ACL, *_acl("User:joe", "Topic:a", actions=[])
    ),
    _root("an odd action", Ask.AUTH_CREATE_ACL, *_acl("User:joe", "Topic:a", actions=["Fly"])),
    _root("any action", Ask.AUTH_CREATE_ACL, *_acl("User:joe", "Topic:a", actions=["Any"])),
    _root("an odd decision", Ask.AUTH_CREATE_ACL, *_acl("User:joe", "Topic:a", decision="x")),
    _root("a blank address", Ask.AUTH_CREATE_ACL, *_acl("User:joe", "Topic:a", ips=[" "])),
    _root("an odd address", Ask.AUTH_CREATE_ACL, *_acl("User:joe", "Topic:a", ips=["10.0.0.0/33"])),
    _root("one odd of two", Ask.AUTH_CREATE_ACL, *_acl("User:joe", "Topic:a", "nothing")),
    *_shown(4),
    _root("sends for joe", Ask.AUTH_CREATE_ACL, *_acl("User:joe", f"Topic:{TOPIC}")),
    *_uses("joe", "with Pub on the topic"),
    _root(
        "groups for joe", Ask.AUTH_CREATE_ACL, *_acl("User:joe", f"Group:{GROUP}", actions=["Sub"])
    ),
    *_uses("joe", "with Sub on the group", may_not_see=True),
    _root(
        "both for joe",
        Ask.AUTH_UPDATE_ACL,
        *_acl("User:joe", f"Topic:{TOPIC}", actions=["pub", "SUB", "Pub"]),
    ),
    *_uses("joe", "with both"),
    *_shown(5),
    _root("all for joe", Ask.AUTH_CREATE_ACL, *_acl("User:joe", "*", actions=["All"])),
    *_uses("joe", "with all"),
    _root(
        "a denial for joe",
        Ask.AUTH_CREATE_ACL,
        *_acl("User:joe", "Topic:prob*", actions=["All"], decision="deny"),
    ),
    *_uses("joe", "with a denied prefix"),
    _root(
        "a denial of the name for joe",
        Ask.AUTH_CREATE_ACL,
        *_acl("User:joe", f"Topic:{TOPIC}", actions=["Pub"], decision="Deny"),
    ),
    *_uses("joe", "with a denied name", may_not_see=True),
    _root(
        "other addresses for joe",
        Ask.AUTH_CREATE_ACL,
        *_acl("User:joe", f"Topic:{TOPIC}", actions=["All"], ips=["192.0.2.1", "10.0.0.0/8"]),
    ),
    *_uses("joe", "from elsewhere", may_not_see=True),
    _root(
        "local addresses for joe",
        Ask.AUTH_CREATE_ACL,
        *_acl("User:joe", f"Topic:{TOPIC}", actions=["All"], ips=["192.0.2.1", "127.0.0.0/8"]),
    ),
    *_uses("joe", "from here"),
    _root(
        "defaults for joe",
        Ask.AUTH_CREATE_ACL,
        *_acl("User:joe", "Group:*", actions=["All"], decision="Deny", kind="Default"),
    ),
    *_shown(6),
    _root("some subjects", Ask.AUTH_LIST_ACL, {"subjectFilter": "jo"}, shows_body=True),
    _root("no subjects", Ask.AUTH_LIST_ACL, {"subjectFilter": "zz"}, shows_body=True),
    _root("some resources", Ask.AUTH_LIST_ACL, {"resourceFilter": "Group:"}, shows_body=True),
    _root("a filter as the subject", Ask.AUTH_LIST_ACL, {"resourceFilter": "joe"}, shows_body=True),
    _root("policies of joe", Ask.AUTH_GET_ACL, {"subject": "user:joe"}, shows_body=True),
    _root(
        "deletes the prefix",
        Ask.AUTH_DELETE_ACL,
        {"subject": "User:joe", "resource": "Topic:prob*"},
    ),
    _root(
        "deletes what is not there",
        Ask.AUTH_DELETE_ACL,
        {"subject": "User:joe", "resource": "Topic:zz"},
    ),
    _root(
        "deletes a default",
        Ask.AUTH_DELETE_ACL,
        {"subject": "User:joe", "resource": "Group:*", "policyType": "default"},
    ),
    *_shown(7),
    *_uses("joe", "after deletions"),
    _root("deletes policies of nobody", Ask.AUTH_DELETE_ACL, {"subject": "User:nobody"}),
    _root("deletes all policies", Ask.AUTH_DELETE_ACL, {"subject": "User:joe"}),
    _root("deletes all policies again", Ask.AUTH_DELETE_ACL, {"subject": "User:joe"}),
    *_shown(8),
    *_uses("joe", "without policies again"),
]
ADMINISTRATORS = [
    _root(
        "administration for joe",
        Ask.AUTH_CREATE_ACL,
        *_acl("User:joe", "Cluster:DefaultCluster", actions=["Get", "Update"]),
    ),
    _by("joe", "makes a user", Ask.AUTH_CREATE_USER, *_user("kim", password="pw")),
    _by(
        "joe",
        "makes a super user",
        Ask.AUTH_CREATE_USER,
        *_user("max", password="pw", userType="Super"),
    ),
    _by("joe", "becomes a super user", Ask.AUTH_UPDATE_USER, *_user("joe", userType="Super")),
    _by("joe", "changes root", Ask.AUTH_UPDATE_USER, *_user(ROOT, password="pw")),
    _by("joe", "deletes root", Ask.AUTH_DELETE_USER, {"username": ROOT}),
    _by("joe", "asks for producers", Ask.GET_ALL_PRODUCER_INFO, {}),
    _by("joe", "asks for a topic", Ask.GET_TOPIC_CONFIG, {"topic": TOPIC}),
    _by("joe", "deletes a user", Ask.AUTH_DELETE_USER, {"username": "kim"}),
    *_shown(9),
]
_TYPO = "Apache takes a word that it does not know as none"
DIFFERENT = [
    _root("misspells", Ask.AUTH_UPDATE_USER, *_user("joe", userStatus="disabled"), differs=_TYPO),
    _root("makes eve", Ask.AUTH_CREATE_USER, *_user("eve", password=secret_of("eve"))),
    _root(
        "one topic and one group for eve",
        Ask.AUTH_CREATE_ACL,
        *_acl("User:eve", "Topic:own", "Group:own", actions=["All"]),
    ),
    _root("makes a topic for eve", Ask.UPDATE_AND_CREATE_TOPIC, topic("own")),
    _by("eve", "sees the settings", Ask.GET_BROKER_CONFIG, {}, differs=_OPEN),
    _by("eve", "changes settings", Ask.UPDATE_BROKER_CONFIG, {}, b"a=b", differs=_OPEN),
    _by("eve", "sees all topics", Ask.GET_ALL_TOPIC_CONFIG, {}, differs=_OPEN),
    _by("eve", "sees all groups", Ask.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, {}, differs=_OPEN),
    _by("eve", "sees the running state", Ask.GET_BROKER_RUNTIME_INFO, {}, differs=_OPEN),
    _by(
        "eve",
        "pulls by another code",
        Ask.LITE_PULL_MESSAGE,
        {**pulling(), "consumerGroup": "own"},
        differs=_OPEN,
    ),
    _by(
        "eve",
        "makes a group",
        Ask.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        {},
        body_of({"groupName": "other"}),
        differs=_OPEN,
    ),
    _by("eve", "sees a message", Ask.VIEW_MESSAGE_BY_ID, {"offset": 0}, differs=_OPEN),
    _by(
        "eve",
        "sees a message as her own",
        Ask.VIEW_MESSAGE_BY_ID,
        {"offset": 0, "topic": "own"},
        differs=_CLAIM,
    ),
    _by(
        "eve",
        "sends a message back as her own",
        Ask.CONSUMER_SEND_MSG_BACK,
        {"offset": 0, "group": "own", "delayLevel": 1, "originTopic": "own"},
        differs=_CLAIM,
    ),
    _by(
        "eve",
        "pulls a retry topic of others",
        Ask.PULL_MESSAGE,
        pulling(consumerGroup="own", topic="%RETRY%other"),
        differs="Apache asks only for the group that pulls",
    ),
    _by(
        "joe",
        "sees the secret of root",
        Ask.AUTH_GET_USER,
        {"username": ROOT},
        shows_body=True,
        differs="Apache shows it to who may Get the cluster",
    ),
    _root(
        "deletes all by a wrong resource",
        Ask.AUTH_DELETE_ACL,
        {"subject": "User:eve", "resource": "own"},
        differs="Apache deletes all policies then",
    ),
    _root(
        "is disabled",
        Ask.AUTH_UPDATE_USER,
        *_user(ROOT, userStatus="disable"),
        differs="Apache lets the last super user go",
    ),
]
SIGNED = [*UNKNOWN, *USERS, *POLICIES, *ADMINISTRATORS, *DIFFERENT]
