"""Consumer status: the offsets that the consumers of a group report.

Source: Apache RocketMQ `AdminBrokerProcessor.getConsumerStatus`, `Broker2Client.getConsumeStatus`.
"""

from functools import partial

from reliable_mq.broker_core.clients import RegisteredMember
from reliable_mq.broker_core.requests.offset_reset import refuse_old_clients
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire import fastjson
from reliable_mq.wire.answer import encode_answer
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply, request
from reliable_mq.wire.peer_texts import read_json

_TIMEOUT_MS = 5_000


class _Survey:
    """Collects the answers of several consumers; the tool gets a reply after the last one.

    A consumer that fails, disconnects or times out is skipped.
    """

    def __init__(self, state: BrokerState, asked: Request, count: int) -> None:
        self._state = state
        self._asked = asked
        self._awaited = count
        self._offsets: dict[str, object] = {}

    def add_answer(self, client_id: str, answer: Command | None) -> None:
        """Add one consumer's answer; None means that there will be no answer."""
        if answer is not None and answer.code == ResponseCode.SUCCESS and answer.body:
            self._offsets[client_id] = _table_in(answer.body)
        self._awaited -= 1
        if self._awaited == 0 and not self._asked.command.is_oneway:
            sent = reply(self._asked.command, body=_body(self._offsets))
            self._state.reply(self._asked.connection.id, encode_answer(sent))


def _body(offsets: dict[str, object]) -> bytes:
    return fastjson.dumps({"consumerTable": offsets, "messageQueueTable": {}})


def _table_in(body: bytes) -> object:
    try:
        return read_json(body).get("messageQueueTable", {})
    except (ValueError, AttributeError):
        return {}


def get_consumer_status(state: BrokerState, asked: Request) -> Command | None:
    """INVOKE_BROKER_TO_GET_CONSUMER_STATUS: for one consumer (`clientAddr`, its id) or for all."""
    ext = asked.command.ext_fields
    name, wanted = ext.get("group", ""), ext.get("clientAddr", "").strip()
    group = state.clients.consumer_group(name)
    if group is None:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{name}]"
        )
    refuse_old_clients(group)
    members = [m for m in group.members.values() if not wanted or m.client_id == wanted]
    if not members:
        return reply(asked.command, body=_body({}))
    survey = _Survey(state, asked, len(members))
    for member in members:
        _ask(state, asked, member, survey)
    return None


def _ask(state: BrokerState, asked: Request, member: RegisteredMember, survey: _Survey) -> None:
    ext = asked.command.ext_fields
    sent = {"topic": ext.get("topic", ""), "group": ext.get("group", "")}
    command = request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, sent)
    answered = partial(survey.add_answer, member.client_id)
    frame = state.calls.begin(member.connection, command, asked.now_ms, answered, _TIMEOUT_MS)
    state.reply(member.connection, frame)
