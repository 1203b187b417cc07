"""What consumers do with messages that they have: acknowledge them, keep them longer, bury them.

A push consumer keeps a message as long as it is connected: its handle is renewed here.
Source: Apache RocketMQ `AckMessageActivity`, `ChangeInvisibleDurationActivity`,
`DefaultReceiptHandleManager`.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from reliable_mq.gateway import renewals
from reliable_mq.gateway.acting import ACTING
from reliable_mq.gateway.asyncio_soon import Soon
from reliable_mq.gateway.asyncio_upstream import Begun, Upstream
from reliable_mq.gateway.call_body import decode_call
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import Code, RpcRefused, refused_by_broker
from reliable_mq.gateway.handles import Handle, read_handle
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.receiving import PoppedMessage
from reliable_mq.gateway.renewals import Due, Held
from reliable_mq.gateway.sending import check_group, check_topic
from reliable_mq.gateway.sessions import Session, Sessions, ms_of
from reliable_mq.gateway.usual_ack import acknowledged, usual_ack
from reliable_mq.wire.codes import RequestCode, ResponseCode
from reliable_mq.wire.command import LANGUAGE, VERSION, Command, request
from reliable_mq.wire.pop_handle import PopHandle
from reliable_mq.wire.pop_headers import ReadAckHeader

INVISIBLE_MS_MAX = 12 * 3600 * 1000
_LAST_SECONDS = 3.0


def now_ms() -> int:
    """Return the time in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def check_invisible(ms: int, shortest: int) -> None:
    """Refuse an invisible time that is too short or too long.

    Raises:
        RpcRefused: when it is.
    """
    if ms < shortest:
        raise RpcRefused(
            Code.ILLEGAL_INVISIBLE_TIME, f"the invisibleTime is too small. min is {shortest}"
        )
    if ms > INVISIBLE_MS_MAX:
        raise RpcRefused(
            Code.ILLEGAL_INVISIBLE_TIME,
            f"the invisibleTime is too large. max is {INVISIBLE_MS_MAX}",
        )


class Receipts:
    """The messages that were handed out.

    Args:
        upstream: the brokers.
        sessions: the clients.
    """

    def __init__(self, upstream: Upstream, sessions: Sessions) -> None:
        self._upstream = upstream
        self._sessions = sessions
        self._soon = Soon()
        self._due = Due()
        self._renewing = 0
        self.renewals: Counter[str] = Counter()
        """How many renewals were done, and have failed, since the start."""

    def keep(self, session: Session, call: Any, found: Iterable[PoppedMessage]) -> None:
        """Renew messages from now on, unless their client has left meanwhile."""
        topic, group, now = call.message_queue.topic.name, call.group.name, now_ms()
        if self._sessions.find(session.client_id) is not session:
            self.let_go(topic, group, found)
            return
        for each in found:
            key = (group, each.message_id, each.handle)
            try:
                held = session.held[key] = Held(session, key, topic, each.attempts, now)
            except RpcRefused:
                continue  # nobody can do anything with its handle
            self._due.put(held)

    def let_go(self, topic: str, group: str, found: Iterable[PoppedMessage]) -> None:
        """Give back messages whose client has gone."""
        for each in found:
            self._soon.begin(self._give_back(topic, group, each.handle))

    async def _give_back(self, topic: str, group: str, text: str) -> None:
        await self._change(topic, group, read_handle(text), renewals.LET_GO_MS)

    def drop(self, topic: str, group: str, message: PoppedMessage) -> None:
        """Acknowledge a message that the client does not want."""
        self._soon.begin(self._drop(topic, group, message.handle))

    async def _drop(self, topic: str, group: str, text: str) -> None:
        await self.ack(topic, group, read_handle(text))

    def bury_later(self, topic: str, group: str, message: PoppedMessage) -> None:
        """Put a message that has failed too often into the dead-letter topic."""
        self._soon.begin(self._bury(topic, group, message))

    async def _bury(self, topic: str, group: str, message: PoppedMessage) -> None:
        await self.bury(topic, group, read_handle(message.handle), message.unique_key)

    async def acknowledge(self, caller: Caller, call: Any) -> Any:
        """Answer an AckMessage."""
        topic, group = call.topic.name, call.group.name
        check_topic(topic)
        check_group(group)
        session = self._sessions.find(caller.client_id)
        works = [
            self._acknowledge(session, topic, group, each.message_id, each.receipt_handle)
            for each in call.entries
        ]
        outcomes = [await works[0]] if len(works) == 1 else await asyncio.gather(*works)
        return _acknowledged(call, outcomes)

    def begin_ack(self, caller: Caller, body: bytes) -> Begun | None:
        """Begin the AckMessage in a body, if it has the usual form and its message is not renewed.

        Raises:
            RpcRefused, ReliableMQError: when it cannot be done so; `acknowledge` says why.
        """
        ack = usual_ack(body)
        if ack is None:
            return None
        group, topic, stored_topic, entry, message_id, text, head, offset = ack
        session = self._sessions.find(caller.client_id)
        if session is not None and session.held and (group, message_id, text) in session.held:
            return None
        _check_fresh(head)
        address = self._upstream.known_master(head.broker, topic)
        if not address:
            return None

        def finish(answer: Command) -> Any:
            if answer.code != ResponseCode.SUCCESS:
                refused = refused_by_broker(answer.code, answer.remark)
                call = decode_call("AckMessage", body)
                return _acknowledged(call, [(refused.code, str(refused))])
            return acknowledged(entry)

        header = ReadAckHeader(
            consumer_group=group,
            topic=stored_topic,
            queue_id=head.queue_id,
            extra_info=text,
            offset=offset,
            handle=head,
        )
        command = Command(RequestCode.ACK_MESSAGE, 0, 0, LANGUAGE, VERSION, ack_header=header)
        return Begun(address, command, finish)

    async def _acknowledge(
        self, session: Session | None, topic: str, group: str, message_id: str, text: str
    ) -> tuple[Code, str]:
        try:
            async with self._newest(session, group, message_id, text) as newest:
                handle = read_handle(newest)
                _check_fresh(handle.popped)
                await self.ack(topic, group, handle)
        except RpcRefused as refused:
            return refused.code, str(refused)
        return Code.OK, "OK"

    @asynccontextmanager
    async def _newest(
        self, session: Session | None, group: str, message_id: str, text: str
    ) -> AsyncIterator[str]:
        """Give the newest handle of a message; if all goes well, it is renewed no more.

        Who changes a message gives it another handle, and the former one acknowledges nothing.
        So one waits for the other.
        """
        held = None if session is None else session.held.get((group, message_id, text))
        if held is None:
            yield text
            return
        async with _turn(held):
            yield held.handle
            self._forget(held)

    def _forget(self, held: Held) -> None:
        """Renew a message no more."""
        self._due.remove(held)
        if held.is_kept:
            del held.session.held[held.key]

    async def ack(self, topic: str, group: str, handle: Handle) -> None:
        """Acknowledge a message at its broker.

        Raises:
            RpcRefused: when the broker refuses it, or does not answer.
        """
        fields = _named_by(handle, topic, group)
        address = await self._upstream.master(handle.popped.broker, topic)
        await self._upstream.asked(address, request(RequestCode.ACK_MESSAGE, fields))

    async def change(self, caller: Caller, call: Any) -> Any:
        """Answer a ChangeInvisibleDuration."""
        topic, group = call.topic.name, call.group.name
        check_topic(topic)
        check_group(group)
        invisible_ms = ms_of(call.invisible_duration)
        response = TYPES["ChangeInvisibleDurationResponse"]()
        response.receipt_handle = call.receipt_handle  # some clients adopt what a refusal carries
        try:
            check_invisible(invisible_ms, 0)
            session = self._sessions.find(caller.client_id)
            async with self._newest(session, group, call.message_id, call.receipt_handle) as newest:
                handle = read_handle(newest)
                _check_fresh(handle.popped)
                response.receipt_handle = await self._change(topic, group, handle, invisible_ms)
        except RpcRefused as refused:
            response.status.code, response.status.message = refused.code, str(refused)
            return response
        response.status.code, response.status.message = Code.OK, "OK"
        return response

    async def _change(self, topic: str, group: str, handle: Handle, invisible_ms: int) -> str:
        """Change when a message appears again; return its new handle."""
        fields = {**_named_by(handle, topic, group), "invisibleTime": str(invisible_ms)}
        popped = handle.popped
        address = await self._upstream.master(popped.broker, topic)
        command = request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        answer = (await self._upstream.asked(address, command)).ext_fields
        popped_at, invisible = answer.get("popTime"), answer.get("invisibleTime")
        if popped_at is None or invisible is None:
            return handle.text
        revive = answer.get("reviveQid", str(popped.revive_queue))
        return (
            f"{popped.offset} {popped_at} {invisible} {revive} {popped.kind} {popped.broker}"
            f" {popped.queue_id} {popped.offset} {handle.log_offset}"
        )

    async def forward(self, caller: Caller, call: Any) -> Any:
        """Answer a ForwardMessageToDeadLetterQueue."""
        topic, group = call.topic.name, call.group.name
        check_topic(topic)
        check_group(group)
        session = self._sessions.find(caller.client_id)
        async with self._newest(session, group, call.message_id, call.receipt_handle) as newest:
            await self.bury(topic, group, read_handle(newest), call.message_id)
        response = TYPES["ForwardMessageToDeadLetterQueueResponse"]()
        response.status.code, response.status.message = Code.OK, "OK"
        return response

    async def bury(self, topic: str, group: str, handle: Handle, message_id: str) -> None:
        """Put a message into the dead-letter topic of a group."""
        if handle.log_offset < 0:
            raise RpcRefused(Code.INVALID_RECEIPT_HANDLE, "commit log offset is empty")
        fields = {
            "offset": str(handle.log_offset),
            "group": group,
            "delayLevel": "-1",
            "originMsgId": message_id,
            "originTopic": handle.real_topic(topic, group),
            "unitMode": "false",
            "maxReconsumeTimes": "0",
        }
        address = await self._upstream.master(handle.popped.broker, topic)
        await self._upstream.asked(address, request(RequestCode.CONSUMER_SEND_MSG_BACK, fields))
        await self.ack(topic, group, handle)

    # Renewals.

    def renew_once(self) -> int:
        """Renew what is due, as far as few renewals are under way; return how much that is."""
        due = self._due.take(now_ms(), renewals.RENEWING_MAX - self._renewing)
        for held in due:
            self._renewing += 1
            self._soon.begin(self._renew(held))
        return len(due)

    async def _renew(self, held: Held) -> None:
        ACTING.set(held.session.acting)
        try:
            async with _turn(held):
                if held.is_kept and await self._is_over_after(held):
                    self._forget(held)
                elif held.is_kept:
                    self._due.put(held)
        finally:
            self._renewing -= 1

    async def _is_over_after(self, held: Held) -> bool:
        """Renew a message; return whether that was the last time."""
        now, group = now_ms(), held.key[0]
        is_over = held.is_over(now)
        try:
            invisible_ms = held.next_ms
            if is_over:
                policy = await self._upstream.group(group)
                invisible_ms = policy.delay_ms(held.attempts)
            handle = read_handle(held.handle)
            held.renewed(await self._change(held.topic, group, handle, invisible_ms))
            self.renewals["done"] += 1
        except RpcRefused as refused:
            held.failed(now)
            self.renewals["failed"] += 1
            is_over = held.failures >= renewals.FAILURES_MAX
            is_over = is_over or refused.code is Code.INVALID_RECEIPT_HANDLE
        return is_over

    def release(self, session: Session) -> None:
        """Give back all messages of a client that has gone."""
        held, session.held = session.held, {}
        for each in held.values():
            self._due.remove(each)
            self._soon.begin(self._release(each))

    async def _release(self, held: Held) -> None:
        ACTING.set(held.session.acting)
        async with _turn(held):
            await self._give_back(held.topic, held.key[0], held.handle)

    async def close(self) -> None:
        """Wait for what nobody waits for."""
        await self._soon.ended(_LAST_SECONDS)


@asynccontextmanager
async def _turn(held: Held) -> AsyncIterator[None]:
    """Wait until nobody asks about a message, and let the others wait."""
    while held.asking is not None:
        await asyncio.shield(held.asking)
    held.asking = ended = asyncio.get_running_loop().create_future()
    try:
        yield
    finally:
        held.asking = None
        ended.set_result(None)


def _named_by(handle: Handle, topic: str, group: str) -> dict[str, str]:
    """Return the fields by which a broker finds the message of a handle."""
    return {
        "consumerGroup": group,
        "topic": handle.real_topic(topic, group),
        "queueId": str(handle.popped.queue_id),
        "extraInfo": handle.text,
        "offset": str(handle.popped.offset),
        "bname": handle.popped.broker,
    }


def _acknowledged(call: Any, outcomes: Sequence[tuple[Code, str]]) -> Any:
    """Return the answer to an AckMessage, given what has become of each of its messages."""
    response = TYPES["AckMessageResponse"]()
    for each, (code, text) in zip(call.entries, outcomes, strict=True):
        entry = response.entries.add(message_id=each.message_id, receipt_handle=each.receipt_handle)
        entry.status.code, entry.status.message = code, text
    codes = {code for code, _ in outcomes}
    code = codes.pop() if len(codes) == 1 else Code.MULTIPLE_RESULTS
    if not outcomes:
        code = Code.BAD_REQUEST
    response.status.code = code
    response.status.message = "there is nothing to acknowledge" if not outcomes else code.name
    return response


def _check_fresh(popped: PopHandle) -> None:
    if popped.revive_ms <= now_ms():
        raise RpcRefused(
            Code.INVALID_RECEIPT_HANDLE,
            "receipt handle is expired: the message comes again; receive with a longer invisible"
            " duration, or change it in time",
        )
