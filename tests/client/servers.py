"""A name server and a broker that follow a script, on a loop of their own.

Other processes, and loops that somebody blocks, can talk to them.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import msgspec
from tests.client.test_asyncio_client import Peer

from reliable_mq.names import RETRY_PREFIX
from reliable_mq.runtime.loop_thread import LoopThread
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import Command, reply
from reliable_mq.wire.headers import PullResultHeader
from reliable_mq.wire.record import Record
from reliable_mq.wire.record_encode import encode_record


class RecordingPeer(Peer):
    """A peer that keeps what was asked, and knows which connections are open."""

    def __init__(self, broker: str = "") -> None:
        super().__init__(broker)
        self.commands: list[Command] = []
        self.is_open: list[bool] = []  # of each connection

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = len(self.is_open)
        self.is_open.append(True)
        try:
            await super()._serve(reader, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass  # the client went away, or this server does
        finally:
            self.is_open[at] = False

    def _answer(self, command: Command) -> Command | None:
        self.commands.append(command)
        return super()._answer(command)

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of the messages that came."""
        sends = (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_MESSAGE)
        return [command.body for command in self.commands if command.code in sends]


class NameServer(RecordingPeer):
    """Knows every topic but those of retries."""

    def _answer(self, command: Command) -> Command | None:
        if command.ext_fields.get("topic", "").startswith(RETRY_PREFIX):
            return reply(command, ResponseCode.TOPIC_NOT_EXIST, "no such topic")
        return super()._answer(command)


class FeedingPeer(RecordingPeer):
    """A broker with one queue, to which the next of `pulls` comes when all is read before.

    Bytes among them are answered as they are, and stored nowhere. Its only member of any group is
    who sent the last heartbeat. What `refusals` holds for a request code is answered instead.
    """

    def __init__(self, *pulls: Sequence[Record] | bytes) -> None:
        super().__init__()
        self._pulls = list(pulls)
        self._log: list[Record] = []
        self._member = ""
        self.refusals: dict[int, tuple[int, str]] = {}

    def _answer(self, command: Command) -> Command | None:
        told = super()._answer(command)
        if command.code in self.refusals:
            return reply(command, *self.refusals[command.code])
        match command.code:
            case RequestCode.HEART_BEAT:
                self._member = msgspec.json.decode(command.body)["clientID"]
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                members = msgspec.json.encode({"consumerIdList": [self._member]})
                return reply(command, body=members)
            case RequestCode.QUERY_CONSUMER_OFFSET:
                return reply(command, ext={"offset": "0"})
            case RequestCode.PULL_MESSAGE:
                return self._pulled(command)
        return told

    def _pulled(self, command: Command) -> Command | None:
        offset = int(command.ext_fields["queueOffset"])
        body = b""
        if offset == len(self._log):
            if not self._pulls:
                return None  # as a long poll
            pull = self._pulls.pop(0)
            if isinstance(pull, bytes):
                body = pull
            else:
                self._log += pull
        for at, record in enumerate(self._log):
            record.queue_offset = at
        end = len(self._log)
        header = PullResultHeader(
            suggest_which_broker_id=0, next_begin_offset=end, min_offset=0, max_offset=end
        )
        body = body or b"".join(map(encode_record, self._log[offset:]))
        return reply(command, ext=header.to_ext(), body=body)


class Servers:
    """The two servers, as a context manager; `address` is the name server's."""

    def __init__(self, broker: RecordingPeer | None = None) -> None:
        self.broker = broker or RecordingPeer()
        self.name_server = NameServer()
        self.address = ""
        self._listening = AsyncExitStack()

    def __enter__(self) -> Self:
        self._thread = LoopThread("servers")
        self.address = self._thread.run(self._start())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._thread.run(self._listening.aclose())
        self._thread.close()

    async def _start(self) -> str:
        self.name_server.broker = await self._listening.enter_async_context(self.broker.listening())
        return await self._listening.enter_async_context(self.name_server.listening())
