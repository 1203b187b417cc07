"""Our own client as load: what `Sender.java` and `PullReader.java` do, without Java.

python -m bench.python_client send --namesrv HOST:PORT --file ACKNOWLEDGED
python -m bench.python_client read --namesrv HOST:PORT --file FOUND
"""

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TextIO

from bench.positions import THREAD_STRIDE, Position, number_of, numbered_body
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.offsets import offset_in
from reliable_mq.client.consuming.pulling import received
from reliable_mq.client.flow import Flow, call, succeeded
from reliable_mq.client.sending.asyncio_sending import engine_of
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import Message, MessageQueue, SendStatus
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request
from reliable_mq.wire.headers import PullMessageHeader, PullResultHeader, QueueHeader
from reliable_mq.wire.record import iter_records

TOPIC = "bench"
READER_GROUP = "bench_reader"
BODY_BYTES = 1024
SENDERS = 16
PULL_COUNT = 32
CALL_SECONDS_MAX = 10.0
PAUSE_AFTER_ERROR_SECONDS = 0.02  # a dead broker refuses at once
INLINE_SUBSCRIPTION = 0x4  # the pull brings its own filter: no group has to be registered


async def send_forever(name_servers: str, acknowledged: Path) -> None:
    """Send numbered messages from several tasks until the process ends; errors are expected."""
    settings = ClientSettings(retries=0)  # a number is sent once
    async with AsyncClient(name_servers, settings=settings) as client:
        with acknowledged.open("w", buffering=1) as lines:
            await asyncio.gather(*(_send_lane(client, lane, lines) for lane in range(SENDERS)))


async def _send_lane(client: AsyncClient, lane: int, lines: TextIO) -> None:
    number = lane * THREAD_STRIDE
    while True:
        message = Message(topic=TOPIC, body=numbered_body(number, BODY_BYTES))
        try:
            result = await client.send(message)
        except ReliableMQError:
            await asyncio.sleep(PAUSE_AFTER_ERROR_SECONDS)
        else:
            if result.status is SendStatus.SEND_OK:
                place = (result.queue.queue_id, result.queue_offset, result.message_id)
                lines.write(Position(*place, number).line())
        number += 1


async def read_all(name_servers: str, found: Path) -> int:
    """Write what every queue holds, each in the order of its offsets; return how many messages."""
    count = 0
    async with AsyncClient(name_servers) as client:
        route = await client.topic_route(TOPIC)
        with found.open("w") as lines:
            for queue in sorted(route.readable):
                address = route.brokers[queue.broker_name].master
                if address is None:
                    raise SystemExit(f"{queue} has no master")
                for position in await engine_of(client).run(_read_queue(address, queue)):
                    lines.write(position.line())
                    count += 1
    return count


def _read_queue(address: str, queue: MessageQueue) -> Flow[list[Position]]:
    offset = yield from _offset(RequestCode.GET_MIN_OFFSET, address, queue)
    end = yield from _offset(RequestCode.GET_MAX_OFFSET, address, queue)
    positions: list[Position] = []
    while offset < end:
        header = PullMessageHeader(
            consumer_group=READER_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=PULL_COUNT,
            sys_flag=INLINE_SUBSCRIPTION,
            commit_offset=0,
            suspend_timeout_millis=0,
            subscription="*",
        )
        pull = request(RequestCode.PULL_MESSAGE, header.to_ext())
        reply = yield from call(address, pull, CALL_SECONDS_MAX)
        for record in iter_records(succeeded(reply).body):
            message = received(record, queue)
            place = (queue.queue_id, message.queue_offset, message.message_id)
            positions.append(Position(*place, number_of(message.body)))
        result = reply.pull_result or PullResultHeader.decode(reply.ext_fields)
        offset = result.next_begin_offset
    return positions


def _offset(code: RequestCode, address: str, queue: MessageQueue) -> Flow[int]:
    header = QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
    return offset_in((yield from call(address, request(code, header.to_ext()), CALL_SECONDS_MAX)))


def main() -> int:
    parser = argparse.ArgumentParser(description="Our own client as load.")
    parser.add_argument("verb", choices=("send", "read"))
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--file", type=Path, required=True)
    options = parser.parse_args()
    if options.verb == "send":
        asyncio.run(send_forever(options.namesrv, options.file))
    else:
        print(asyncio.run(read_all(options.namesrv, options.file)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
