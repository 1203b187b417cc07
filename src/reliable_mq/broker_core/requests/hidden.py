"""Records that a request finds by their place in the log, and that its sender may not use.

A request that names an offset may name any topic beside it. With access control, the topic that the
record has counts. Apache's broker looks only at the topic of the request.
"""

from reliable_mq.access.policies import Action
from reliable_mq.access.resources import Resource, topic_resource
from reliable_mq.access.users import AccessRefused
from reliable_mq.broker_core.clients import RegisteredMember
from reliable_mq.broker_core.requests.refusal import RequestRefused
from reliable_mq.broker_core.state import BrokerState, Request
from reliable_mq.wire.codes import ResponseCode
from reliable_mq.wire.properties import REAL_TOPIC
from reliable_mq.wire.record import Record


def refuse_hidden(state: BrokerState, request: Request, record: Record, action: Action) -> None:
    """Refuse a request if its sender may not do this with the record's topic.

    A delayed, timed or half message has the topic that it is for.

    Raises:
        RequestRefused: the sender may not.
    """
    if state.guard is None:
        return
    resource, address = _resource_of(state, record), request.connection.address
    try:
        state.guard.check(request.command, address, resource, (action,))
    except AccessRefused as error:
        raise RequestRefused(ResponseCode.NO_PERMISSION, str(error)) from None


def refuse_stranger(state: BrokerState, member: RegisteredMember, record: Record) -> None:
    """Refuse to show a record to a consumer that may not consume its topic.

    A user with the right to a group may be a member of it without any topic, and rights may be
    taken away.

    Raises:
        RequestRefused: it may not.
    """
    guard = state.guard
    if guard is None:
        return
    if not guard.may(member.user, _resource_of(state, record), (Action.SUB,), member.address):
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the user of the consumer <{member.client_id}> may not consume this message",
        )


def _resource_of(state: BrokerState, record: Record) -> Resource:
    topic = record.topic
    if state.topics.is_system(topic):
        topic = record.property_map().get(REAL_TOPIC, topic)
    return topic_resource(topic)
