"""The three endpoints at which stories of official clients are played, and their topics.

`apache` is Apache's broker behind Apache's proxy: each story is first made to hold there. `proxy`
is the same broker behind ours. `ours` is our broker with an endpoint of its own.
"""

import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec
from bench.apache_rocketmq import ApacheRocketMQ
from bench.reliable_mq_broker import ReliableMQBroker, ReliableMQProxy
from bench.rival_servers import ApacheProxy
from tests.with_java import started

from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import Command, request
from reliable_mq.wire.record import iter_records
from reliable_mq.wire.request_signature import add_signature

ENDPOINTS = ("apache", "proxy", "ours")
BROKER_SETTINGS = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "transactionCheckInterval": "3000",
    "transactionTimeOut": "5000",
    "autoCreateTopicEnable": "false",
}

_NOT_SUPPORTED = 3


class Security(NamedTuple):
    """How clients must come: as a user who signs, over TLS."""

    user: str
    secret: str
    authority: Path
    """The certificate by which the server's is known."""


class Endpoint(NamedTuple):
    """Where clients connect, and the broker behind it. `security`: None: everybody may come."""

    name: str
    address: str
    broker: str
    security: Security | None = None

    @property
    def has_pop(self) -> bool:
        """Whether the broker hands out messages for a time."""
        with self._link() as link:
            return link.call(request(RequestCode.POP_MESSAGE)).code != _NOT_SUPPORTED

    def _link(self) -> BlockingLink:
        """Return a connection of a tool to the broker."""
        if self.security is None:
            return BlockingLink(self.broker, 15)
        user, secret, authority = self.security
        return BlockingLink(
            self.broker,
            15,
            prepare=lambda command: add_signature(command, user, secret),
            tls=ssl.create_default_context(cafile=str(authority)),
        )

    def make_topic(self, name: str, kind: str, queues: int = 4) -> None:
        """Create a topic that takes one kind of messages."""
        fields = {
            "topic": name,
            "defaultTopic": "TBW102",
            "readQueueNums": str(queues),
            "writeQueueNums": str(queues),
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
            "attributes": f"+message.type={kind}",
        }
        self._ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    def make_group(self, name: str, *, is_orderly: bool = False, retries: int = 16) -> None:
        """Create a consumer group."""
        body = msgspec.json.encode(
            {
                "groupName": name,
                "consumeEnable": True,
                "consumeFromMinEnable": True,
                "consumeBroadcastEnable": True,
                "consumeMessageOrderly": is_orderly,
                "retryQueueNums": 1,
                "retryMaxTimes": retries,
                "brokerId": 0,
                "whichBrokerWhenConsumeSlowly": 1,
                "notifyConsumerIdsChangedEnable": True,
            }
        )
        self._ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, body)

    def end_of(self, topic: str) -> int:
        """Return how many messages the first queue of a topic got; 0 without the topic."""
        answer = self.ask(RequestCode.GET_MAX_OFFSET, topic=topic, queueId="0")
        return 0 if answer.code else int(answer.ext_fields["offset"])

    def ask(self, code: int, **fields: str) -> Command:
        """Ask the broker something as a tool; the answer may be a refusal."""
        with self._link() as link:
            return link.call(request(code, fields))

    def first_message(self, topic: str) -> str:
        """Return the broker's id of the first message in a queue of a topic; "": there is none."""
        for queue in range(4):
            answer = self.ask(
                RequestCode.PULL_MESSAGE,
                topic=topic,
                queueId=str(queue),
                consumerGroup="looks",
                queueOffset="0",
                maxMsgNums="1",
                sysFlag="4",
                commitOffset="0",
                suspendTimeoutMillis="0",
                subVersion="0",
                subscription="*",
            )
            if answer.code == 0:
                (record,) = iter_records(answer.body)
                return record.offset_message_id()
        return ""

    def _ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> None:
        with self._link() as link:
            answer = link.call(request(code, fields, body))
            assert answer.code == 0, (answer.code, answer.remark)


@contextmanager
def running(
    directory: Path,
    names: tuple[str, ...] = ENDPOINTS,
    settings: Mapping[str, str] = BROKER_SETTINGS,
) -> Iterator[dict[str, Endpoint]]:
    """Run the endpoints, with these settings of brokers; give them by name."""
    found: dict[str, Endpoint] = {}
    with ExitStack() as stack:
        if "apache" in names or "proxy" in names:
            home = directory / "apache"
            apache = stack.enter_context(
                started(ApacheRocketMQ(home, "ASYNC_FLUSH", dict(settings)))
            )
            behind = apache.name_server_address
            if "apache" in names:
                (directory / "theirs").mkdir(parents=True)
                theirs = stack.enter_context(ApacheProxy(directory / "theirs", behind))
                found["apache"] = Endpoint("apache", theirs.address, apache.address)
            if "proxy" in names:
                proxy = stack.enter_context(ReliableMQProxy(directory / "proxy", behind))
                found["proxy"] = Endpoint("proxy", proxy.address, apache.address)
        if "ours" in names:
            broker = ReliableMQBroker(
                directory / "ours", "ASYNC_FLUSH", settings=dict(settings), has_grpc=True
            )
            stack.enter_context(broker)
            found["ours"] = Endpoint("ours", broker.grpc_address, broker.address)
        yield found
