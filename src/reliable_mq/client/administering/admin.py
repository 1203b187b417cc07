"""Administration: topics made, routes told, progress of a consumer group measured."""

from reliable_mq.client.connecting.name_servers import NameServers
from reliable_mq.client.connecting.routes import RouteTable, decode_cluster
from reliable_mq.client.consuming.offsets import offset_in
from reliable_mq.client.consuming.subscription import check_name
from reliable_mq.client.flow import Call, Flow, Wait, call_all, now, succeeded
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ConfigurationError, NoRoute, ReliableMQError
from reliable_mq.limits import TOPIC_LENGTH_MAX
from reliable_mq.message import MessageQueue
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.headers import ConsumerOffsetHeader, QueueHeader, TopicConfigHeader

READ_AND_WRITE = 6
NO_COMMITTED_OFFSET = -1


_LOOK_AGAIN_SECONDS = 0.02


def masters(name_servers: NameServers) -> Flow[list[str]]:
    """Return the addresses of all masters that the name servers know.

    Raises:
        RemoteError, Unavailable: when none tells.
    """
    reply = yield from name_servers.ask(request(RequestCode.GET_BROKER_CLUSTER_INFO))
    return [broker.master for broker in decode_cluster(succeeded(reply).body) if broker.master]


def create_topic(
    name_servers: NameServers,
    routes: RouteTable,
    settings: ClientSettings,
    topic: str,
    queues: int,
) -> Flow[None]:
    """Create `topic` at the master of every broker, or give it so many queues.

    Returns when the name server tells of all of them, so that the next send uses them.

    Raises:
        ConfigurationError: when the name is illegal, or the number of queues.
        NoRoute: when the name servers know no broker, or do not hear of the topic in time.
        RemoteError, Unavailable: when a broker refuses or cannot be reached; others may have it.
    """
    check_name("topic", topic, TOPIC_LENGTH_MAX)
    if not isinstance(queues, int) or queues < 1:
        raise ConfigurationError(f"{queues!r} is no number of queues: give 1 or more")
    addresses = yield from masters(name_servers)
    if not addresses:
        raise NoRoute("the name servers know no broker")
    header = TopicConfigHeader(
        topic=topic,
        read_queue_nums=queues,
        write_queue_nums=queues,
        perm=READ_AND_WRITE,
        topic_sys_flag=0,
        order=False,
    )
    answers = yield from call_all(
        [
            Call(
                address,
                request(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext()),
                settings.request_timeout,
            )
            for address in addresses
        ]
    )
    for answer in answers:
        succeeded(_reply(answer))
    instant = yield from now()
    deadline = instant.seconds + settings.request_timeout
    while not (yield from _is_told(routes, topic, queues * len(addresses))):
        instant = yield from now()
        if instant.seconds >= deadline:
            raise NoRoute(f"topic {topic} is created, but its brokers do not tell the name server")
        yield Wait(_LOOK_AGAIN_SECONDS)


def _is_told(routes: RouteTable, topic: str, queues: int) -> Flow[bool]:
    try:
        route = yield from routes.look_up(topic)
    except NoRoute:
        return False
    return len(route.writable) == queues


def consumer_progress(
    routes: RouteTable, settings: ClientSettings, group: str, topic: str
) -> Flow[dict[MessageQueue, tuple[int, int]]]:
    """Return (committed offset, maximum offset) of `group` in each readable queue of `topic`.

    A group that has committed nothing in a queue has the committed offset -1.

    Raises:
        NoRoute: when the name servers do not know the topic.
        RemoteError, Unavailable: when a broker does not tell.
    """
    route = yield from routes.of(topic)
    calls: list[Call] = []
    for queue in route.readable:
        address = route.brokers[queue.broker_name].to_read_from(0)
        if address is None:
            raise NoRoute(f"no broker of {queue} is known")
        committed = ConsumerOffsetHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
        )
        maximum = QueueHeader(topic=topic, queue_id=queue.queue_id)
        for code, ext in (
            (RequestCode.QUERY_CONSUMER_OFFSET, committed.to_ext()),
            (RequestCode.GET_MAX_OFFSET, maximum.to_ext()),
        ):
            calls.append(Call(address, request(code, ext), settings.request_timeout))
    answers = yield from call_all(calls)
    return {
        queue: (_committed(_reply(answers[2 * at])), offset_in(_reply(answers[2 * at + 1])))
        for at, queue in enumerate(route.readable)
    }


def _committed(reply: Command) -> int:
    return NO_COMMITTED_OFFSET if reply.code == ResponseCode.QUERY_NOT_FOUND else offset_in(reply)


def _reply(answer: Command | ReliableMQError) -> Command:
    if isinstance(answer, ReliableMQError):
        raise answer
    return answer
