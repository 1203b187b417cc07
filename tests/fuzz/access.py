"""A broker with access control, asked odd things by senders who may do little or nothing."""

import json
from collections.abc import Callable
from random import Random

from tests.access.access_world import ROOT, AccessWorld, secret_of
from tests.broker_core.broker_world import connection
from tests.fuzz.mutations import mutated, mutated_json
from tests.fuzz.requests import any_request

from reliable_mq.access.access_table import PATH
from reliable_mq.broker_core.names import dead_letter_topic, retry_topic
from reliable_mq.broker_core.requests.handlers import HANDLERS
from reliable_mq.errors import ConfigurationError, FrameError, StoreError
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, encode_command, request
from reliable_mq.wire.frame import FrameReader
from reliable_mq.wire.request_signature import ACCESS_KEY, SIGNATURE, add_signature

OWN, OWN_GROUP, SECRET = "own", "own_group", b"a message of others"
SENDERS = ("", "stranger", "mallory", "wrong")

Input = Callable[[str, object], None]


class Opened(Exception):
    """A door was open."""


def access(random: Random, note: Input) -> None:
    """Who is not known gets nothing, others what was granted; a damaged file opens no door."""
    world = AccessWorld(timerWheelEnable="false", recallMessageEnable="true")
    world.create_topic_as_root()
    world.create_topic_as_root(OWN)
    world.make_user("mallory")
    world.allow("mallory", f"Topic:{OWN}", f"Group:{OWN_GROUP}")
    header = {"a": "p", "b": "orders", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
    world.ask_as(ROOT, RequestCode.SEND_MESSAGE_V2, {**header, "i": "KEYS\x01k1\x02"}, SECRET)
    before = _state(world)
    for _ in range(random.randint(20, 60)):
        _ask(world, random, note)
    if _state(world) != before:
        raise Opened(f"somebody changed {before} to {_state(world)}")
    world.stop()
    _open_damaged(world, random, note)


def _ask(world: AccessWorld, random: Random, note: Input) -> None:
    sender = random.choice(SENDERS)
    command = any_request(random)
    if sender == "mallory" and random.random() < 0.5:
        command = _clever(random)
    _sign(command, sender, random)
    try:
        data = encode_command(command)
        note(sender, data)
        commands = [world.core.decode(frame) for frame in FrameReader().feed(data)]
    except FrameError:
        return
    for each in commands:
        world.core.receive(connection(1), each, world.now_ms)
        world.finish_turn()
        for answer in world.inbox.pop(1, []):
            if sender != "mallory" and answer.is_reply and answer.code not in _REFUSED:
                raise Opened(f"{sender or 'nobody'} gets {answer.code} for {each.code}")
            if SECRET in answer.body:
                raise Opened(f"{sender or 'nobody'} reads what others have sent by {each.code}")


def _clever(random: Random) -> Command:
    """Return a request that is whole, and names now what is Mallory's and now what is not."""
    topic = random.choice((OWN, "orders", "%RETRY%payments"))
    group = random.choice((OWN_GROUP, "payments"))
    fields = {
        "topic": topic,
        "b": topic,
        "originTopic": topic,
        "a": "p",
        "c": "TBW102",
        "d": "4",
        "group": group,
        "consumerGroup": group,
        "destGroup": group,
        "srcGroup": "payments",
        "queueId": "0",
        "e": "0",
        "f": "0",
        "g": "1",
        "h": "0",
        "offset": "0",
        "delayLevel": "1",
        "queueOffset": "0",
        "maxMsgNums": "8",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "key": "k1",
        "maxNum": "8",
        "beginTimestamp": "0",
        "endTimestamp": str(2**53),
        "index": "0",
        "count": "8",
        "msgId": "7F00000100002A9F" + "0" * 16,
        "clientId": "c",
        "commitLogOffset": "0",
        "tranStateTableOffset": "0",
        "commitOrRollback": "8",
        "producerGroup": "p",
        "fromTransactionCheck": "false",
        "username": "mallory",
    }
    left_out = random.choice(list(fields)) if random.random() < 0.3 else ""
    code = int(random.choice(list(HANDLERS)))
    return request(code, {name: value for name, value in fields.items() if name != left_out}, b"{}")


_REFUSED = frozenset({ResponseCode.NO_PERMISSION, ResponseCode.INVALID_PARAMETER})
"""The second one: a body that is too large is refused before anybody looks who has sent it."""


def _sign(command: Command, sender: str, random: Random) -> None:
    if sender:
        name = ROOT if sender == "wrong" else sender
        secret = "a wrong secret" if sender == "wrong" else secret_of(sender)
        add_signature(command, name, secret)
    elif random.random() < 0.5:
        command.ext_fields[ACCESS_KEY] = ROOT
        command.ext_fields[SIGNATURE] = random.choice(("", "AAAA", "=" * 28))


def _state(world: AccessWorld) -> object:
    """Return what nobody may change: users, settings, and what is not Mallory's."""
    hers = {OWN, retry_topic(OWN_GROUP), dead_letter_topic(OWN_GROUP)}
    topics = {
        name: len(world.records(name))
        for name in world.state.topics.by_name
        if name not in hers and not world.state.topics.is_system(name)
    }
    groups = set(world.state.groups.by_name) - {OWN_GROUP}
    return world.state.access.dump(), topics, groups, world.state.config


def _open_damaged(world: AccessWorld, random: Random, note: Input) -> None:
    text = world.disk.read_text(PATH).encode()
    damaged = mutated(random, text)
    if random.random() < 0.6:
        damaged = json.dumps(mutated_json(random, json.loads(text))).encode("utf-8", "replace")
    note("file", damaged)
    world.disk.place_file(PATH, damaged)
    try:
        again = AccessWorld(world.disk)
    except (StoreError, ConfigurationError) as error:
        if secret_of("mallory") in str(error):
            raise Opened("an error shows a secret") from error
        return
    again.state.access.invariants()
    if again.ask(RequestCode.GET_BROKER_CONFIG, {}).code != ResponseCode.NO_PERMISSION:
        raise Opened("a damaged file lets everybody in")
