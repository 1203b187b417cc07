"""What every client does: it asks for routes, tells its settings, shows that it lives, and leaves.

Source: Apache RocketMQ `RouteActivity`, `ClientActivity`.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from reliable_mq.client.connecting.routes import Route
from reliable_mq.gateway.acting import ACTING
from reliable_mq.gateway.asyncio_questions import Questions, Roster
from reliable_mq.gateway.asyncio_receipts import now_ms
from reliable_mq.gateway.asyncio_rights import Rights
from reliable_mq.gateway.asyncio_upstream import Upstream
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import ClientKind, Code, RpcRefused
from reliable_mq.gateway.group_policy import GroupPolicy
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.sending import check_echoed, check_group, check_topic
from reliable_mq.gateway.sessions import Session, Sessions, TelemetryStream, completed

_READ, _WRITE, _READ_WRITE, _NONE = 2, 3, 4, 1
_KNOWN = {ClientKind.PRODUCER, ClientKind.PUSH_CONSUMER, ClientKind.SIMPLE_CONSUMER}
_PULLS = _KNOWN | {ClientKind.PULL_CONSUMER}


class Clients:
    """The calls that all clients make.

    Args:
        upstream: the brokers.
        sessions: the clients.
        rights: what clients may do.
        on_gone: called with a client that has left.
        on_producer: called when a producer has told its topics.
        questions: of tools to clients.
        roster: is told which consumers there are; None: nobody is.
    """

    def __init__(
        self,
        upstream: Upstream,
        sessions: Sessions,
        rights: Rights,
        on_gone: Callable[[Session], None],
        on_producer: Callable[[Session], None],
        questions: Questions,
        roster: Roster | None,
    ) -> None:
        self._upstream = upstream
        self._sessions = sessions
        self._rights = rights
        self._on_gone = on_gone
        self._on_producer = on_producer
        self._questions = questions
        self._roster = roster
        self._by_stream: dict[TelemetryStream, Session] = {}

    async def query_route(self, _caller: Caller, call: Any) -> Any:
        """Answer a QueryRoute: all queues, at the address that the client has used."""
        topic = call.topic.name
        check_topic(topic)
        check_echoed(call)
        await self._rights.see(topic)
        route = await self._upstream.route(topic)
        kinds = sorted(await self._upstream.kinds(topic))
        response = TYPES["QueryRouteResponse"]()
        for name, broker in sorted(route.brokers.items()):
            permissions = _permissions(route, name)
            for broker_id in sorted(broker.addresses):
                for number, permission in enumerate(permissions):
                    queue = response.message_queues.add(id=number, permission=permission)
                    queue.topic.CopyFrom(call.topic)
                    queue.broker.name, queue.broker.id = name, broker_id
                    queue.broker.endpoints.CopyFrom(call.endpoints)
                    queue.accept_message_types.extend(kinds)
        response.status.code, response.status.message = Code.OK, "OK"
        return response

    async def heartbeat(self, caller: Caller, call: Any) -> Any:
        """Answer a Heartbeat."""
        session = self._sessions.find(caller.client_id)
        if session is None:
            raise RpcRefused(
                Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client"
            )
        if session.kind not in _PULLS:
            raise RpcRefused(
                Code.UNRECOGNIZED_CLIENT_TYPE, f"client type {session.settings.client_type}"
            )
        if session.kind is not ClientKind.PRODUCER:
            check_group(call.group.name)
        session.seen_at = asyncio.get_running_loop().time()
        self._note_consumer(session, session.group)
        response = TYPES["HeartbeatResponse"]()
        response.status.code, response.status.message = Code.OK, "OK"
        return response

    async def terminate(self, caller: Caller, _call: Any) -> Any:
        """Answer a NotifyClientTermination."""
        session = self._sessions.find(caller.client_id)
        if session is None:
            raise RpcRefused(
                Code.UNRECOGNIZED_CLIENT_TYPE, "cannot find client settings for this client"
            )
        self._forget(session)
        response = TYPES["NotifyClientTerminationResponse"]()
        response.status.code, response.status.message = Code.OK, "OK"
        return response

    async def told(self, caller: Caller, command: Any, stream: TelemetryStream) -> None:
        """Take a command of a client on its Telemetry stream.

        Raises:
            RpcRefused: when the settings cannot be taken; the stream ends.
        """
        if command.WhichOneof("command") != "settings":
            self._questions.told(self._by_stream.get(stream), command)
            return
        loop = asyncio.get_running_loop()
        settings = command.settings
        for resource in settings.publishing.topics:
            check_topic(resource.name)
        policy = GroupPolicy()
        if settings.WhichOneof("pub_sub") == "subscription":
            group = settings.subscription.group.name
            check_group(group)
            await self._rights.join(group)
            policy = await self._upstream.group(group)
        known = self._sessions.find(caller.client_id)
        group = known.group if known is not None else ""
        session = self._sessions.put(caller.client_id, settings, loop.time())
        session.acting, session.policy = ACTING.get(), policy
        session.language, session.version = caller.language, caller.client_version
        session.began_ms = session.began_ms or now_ms()
        self._note_consumer(session, group)
        before, session.stream = session.stream, stream
        if stream.is_open:
            self._by_stream[stream] = session
        if before is not None and before is not stream:
            self._by_stream.pop(before, None)
            before.close()
        if session.kind is ClientKind.PRODUCER:
            self._on_producer(session)
        answer = TYPES["TelemetryCommand"]()
        answer.status.code, answer.status.message = Code.OK, "OK"
        answer.settings.CopyFrom(completed(session))
        stream.write(answer)

    def _note_consumer(self, session: Session, group: str) -> None:
        """Tell the broker of this process about a consumer that was in `group` before."""
        if self._roster is None:
            return
        if group and group != session.group:
            self._roster.leave(session, group)
        if session.group:
            self._roster.join(session)

    def lost(self, stream: TelemetryStream) -> None:
        """Note that a Telemetry stream has ended. The client may open another one."""
        session = self._by_stream.pop(stream, None)
        if session is not None and session.stream is stream:
            session.stream = None
            session.seen_at = asyncio.get_running_loop().time()

    def forget_silent(self) -> None:
        """Forget the clients that have left without a word."""
        for session in self._sessions.silent(asyncio.get_running_loop().time()):
            self._forget(session)

    def _forget(self, session: Session) -> None:
        """Forget a client, and give back what it has, as its user."""
        self._sessions.drop(session)
        if self._roster is not None and session.group:
            self._roster.leave(session, session.group)
        if session.stream is not None:
            self._by_stream.pop(session.stream, None)
        before = ACTING.set(session.acting)
        try:
            self._on_gone(session)
        finally:
            ACTING.reset(before)


def _permissions(route: Route, broker: str) -> list[int]:
    """Return what may be done with each queue of a broker, in Apache's order."""
    reads = sum(each.broker_name == broker for each in route.readable)
    writes = sum(each.broker_name == broker for each in route.writable)
    both = min(reads, writes)
    found = [_READ] * (reads - both) + [_WRITE] * (writes - both) + [_READ_WRITE] * both
    return found or [_NONE]
