"""What consumers do with messages that they have: acknowledge them, keep them longer, bury them.

A push consumer keeps a message as long as it is connected: its handle is renewed here.
Source: Apache RocketMQ `AckMessageActivity`, `ChangeInvisibleDurationActivity`,
`DefaultReceiptHandleManager`.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

from reliable_mq.gateway import renewals
from reliable_mq.gateway.acting import ACTING
from reliable_mq.gateway.asyncio_upstream import Upstream
from reliable_mq.gateway.caller import Caller
from reliable_mq.gateway.codes import Code, RpcRefused
from reliable_mq.gateway.handles import Handle, read_handle
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.gateway.receiving import PoppedMessage
from reliable_mq.gateway.renewals import Held
from reliable_mq.gateway.sending import check_group, check_topic
from reliable_mq.gateway.sessions import Session, Sessions, ms_of
from reliable_mq.wire import properties as p
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request

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
        self._background: set[asyncio.Task[Any]] = set()

    def keep(self, session: Session, call: Any, found: Iterable[PoppedMessage]) -> None:
        """Renew messages from now on."""
        now = now_ms()
        for each in found:
            if len(session.held) < renewals.HELD_MAX:
                message_id = each.properties.get(p.UNIQ_KEY) or each.record.offset_message_id()
                topic = call.message_queue.topic.name
                held = Held(topic, each.handle, each.attempts, now)
                session.held[call.group.name, message_id, each.handle] = held

    def let_go(self, topic: str, group: str, found: Iterable[PoppedMessage]) -> None:
        """Give back messages whose client has gone."""
        for each in found:
            handle = read_handle(each.handle)
            self.later(self._change(topic, group, handle, renewals.LET_GO_MS))

    def later(self, work: Any) -> None:
        """Do something that nobody waits for."""
        task = asyncio.get_running_loop().create_task(_quietly(work))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # Acknowledgements.

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
        response = TYPES["AckMessageResponse"]()
        for each, (code, text) in zip(call.entries, outcomes, strict=True):
            entry = response.entries.add(
                message_id=each.message_id, receipt_handle=each.receipt_handle
            )
            entry.status.code, entry.status.message = code, text
        codes = {code for code, _ in outcomes}
        code = codes.pop() if len(codes) == 1 else Code.MULTIPLE_RESULTS
        if not outcomes:
            code = Code.BAD_REQUEST
        response.status.code = code
        response.status.message = "there is nothing to acknowledge" if not outcomes else code.name
        return response

    async def _acknowledge(
        self, session: Session | None, topic: str, group: str, message_id: str, text: str
    ) -> tuple[Code, str]:
        try:
            handle = read_handle(_newest(session, group, message_id, text))
            _check_fresh(handle)
            await self.ack(topic, group, handle)
        except RpcRefused as refused:
            return refused.code, str(refused)
        return Code.OK, "OK"

    async def ack(self, topic: str, group: str, handle: Handle) -> None:
        fields = {
            "consumerGroup": group,
            "topic": handle.real_topic(topic, group),
            "queueId": str(handle.queue_id),
            "extraInfo": handle.text,
            "offset": str(handle.offset),
            "bname": handle.broker,
        }
        address = await self._upstream.master(handle.broker, topic)
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
            handle = read_handle(_newest(session, group, call.message_id, call.receipt_handle))
            _check_fresh(handle)
            response.receipt_handle = await self._change(topic, group, handle, invisible_ms)
        except RpcRefused as refused:
            response.status.code, response.status.message = refused.code, str(refused)
            return response
        response.status.code, response.status.message = Code.OK, "OK"
        return response

    async def _change(self, topic: str, group: str, handle: Handle, invisible_ms: int) -> str:
        """Change when a message appears again; return its new handle."""
        fields = {
            "consumerGroup": group,
            "topic": handle.real_topic(topic, group),
            "queueId": str(handle.queue_id),
            "extraInfo": handle.text,
            "offset": str(handle.offset),
            "invisibleTime": str(invisible_ms),
            "bname": handle.broker,
        }
        address = await self._upstream.master(handle.broker, topic)
        command = request(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)
        answer = (await self._upstream.asked(address, command)).ext_fields
        popped_at, invisible = answer.get("popTime"), answer.get("invisibleTime")
        if popped_at is None or invisible is None:
            return handle.text
        revive = answer.get("reviveQid", str(handle.revive_queue))
        return (
            f"{handle.offset} {popped_at} {invisible} {revive} {handle.kind} {handle.broker}"
            f" {handle.queue_id} {handle.offset} {handle.log_offset}"
        )

    async def forward(self, caller: Caller, call: Any) -> Any:
        """Answer a ForwardMessageToDeadLetterQueue."""
        topic, group = call.topic.name, call.group.name
        check_topic(topic)
        check_group(group)
        session = self._sessions.find(caller.client_id)
        handle = read_handle(_newest(session, group, call.message_id, call.receipt_handle))
        await self.bury(topic, group, handle, call.message_id)
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
        address = await self._upstream.master(handle.broker, topic)
        await self._upstream.asked(address, request(RequestCode.CONSUMER_SEND_MSG_BACK, fields))
        await self.ack(topic, group, handle)

    # Renewals.

    def renew_once(self) -> int:
        """Renew what is due; return how much that is."""
        now = now_ms()
        due = 0
        for session in self._sessions:
            for key, held in list(session.held.items()):
                if held.is_due(now):
                    due += 1
                    held.is_asking = True
                    self.later(self._renew(session, key, held, now))
        return due

    async def _renew(
        self, session: Session, key: tuple[str, str, str], held: Held, now: int
    ) -> None:
        ACTING.set(session.acting)
        is_over = held.is_over(now)
        invisible_ms = session.policy.delay_ms(held.attempts) if is_over else held.next_ms
        try:
            handle = read_handle(held.handle)
            held.renewed(await self._change(held.topic, key[0], handle, invisible_ms))
        except RpcRefused as refused:
            held.failures += 1
            is_over = held.failures >= renewals.FAILURES_MAX
            is_over = is_over or refused.code is Code.INVALID_RECEIPT_HANDLE
        finally:
            held.is_asking = False
        if is_over:
            session.held.pop(key, None)

    def release(self, session: Session) -> None:
        """Give back all messages of a client that has gone."""
        held, session.held = session.held, {}
        for (group, _, _), each in held.items():
            handle = read_handle(each.handle)
            self.later(self._change(each.topic, group, handle, renewals.LET_GO_MS))

    async def close(self) -> None:
        """Wait for what nobody waits for."""
        if self._background:
            await asyncio.wait(self._background, timeout=_LAST_SECONDS)


async def _quietly(work: Any) -> None:
    """Do something whose failure only means that a message comes again."""
    try:
        await work
    except RpcRefused:
        return


def _newest(session: Session | None, group: str, message_id: str, text: str) -> str:
    """Return the newest handle of a message; it is renewed no more."""
    if session is None or not session.held:
        return text
    held = session.held.pop((group, message_id, text), None)
    return held.handle if held is not None else text


def _check_fresh(handle: Handle) -> None:
    if handle.visible_at <= now_ms():
        raise RpcRefused(Code.INVALID_RECEIPT_HANDLE, "receipt handle is expired")
