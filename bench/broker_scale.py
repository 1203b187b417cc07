"""What a broker costs as it grows: memory, start, recovery, connections, and time to a consumer.

python -m bench.broker_scale                        everything, some twenty minutes
python -m bench.broker_scale memory --messages 1000000
python -m bench.broker_scale start --gib 5          ready, with an empty store and a full one
python -m bench.broker_scale recovery --gib 10      ready after SIGKILL
python -m bench.broker_scale connections --count 10000
python -m bench.broker_scale latency --rate 1000    from the send to the handler
python -m bench.broker_scale topics queues          sends, creations and stalls, by number
"""

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from bench import many_topics, raw_results
from bench.apache_rocketmq import ApacheRocketMQ
from bench.java_programs import missing_tools, run_program
from bench.quiet import resident_mib, used_seconds
from bench.reliable_mq_broker import ReliableMQBroker
from bench.render import scale_table
from bench.send_throughput import BODY_BYTES, BROKERS, pin_to_two_cores
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import encode_command, request

PROGRAM_SECONDS_MAX = 1800.0
RECORD_BYTES = 1024 + 200  # body, fields and properties, about
TOPIC = "scale"
OURS = ReliableMQBroker.label
IDLE_SECONDS = 10.0

Broker = ReliableMQBroker | ApacheRocketMQ
Figures = list[dict[str, Any]]


def figure(what: str, broker: str, value: float, unit: str) -> dict[str, Any]:
    """Return one measured figure, and print it."""
    print(f"{what}: {broker} {value:,.3g} {unit}", flush=True)
    return {"what": what, "broker": broker, "value": round(value, 4), "unit": unit}


def fill(broker: Broker, directory: Path, count: int) -> None:
    """Send `count` messages of 1 KiB in batches, with Apache's client."""
    run_program(
        "Sender",
        directory,
        timeout=PROGRAM_SECONDS_MAX,
        namesrv=broker.name_server_address,
        threads=8,
        batch=32,
        count=count,
        body=BODY_BYTES,
    )


def broker_in(directory: Path, key: str, flush: str = "ASYNC_FLUSH") -> Broker:
    """Return a broker that is not started, with a folder of its own."""
    (directory / key).mkdir(exist_ok=True)
    broker: Broker = BROKERS[key](directory / key / "broker", flush)
    return broker


def memory(directory: Path, options: argparse.Namespace) -> Figures:
    """The brokers' resident memory after so many messages; name servers are not counted."""
    figures = []
    for key in options.brokers:
        with broker_in(directory, key) as broker:
            fill(broker, directory / key, options.messages)
            what = f"resident after {options.messages:,} messages"
            figures.append(figure(what, broker.label, resident_mib(broker.pids[0]), "MiB"))
    return figures


def start(directory: Path, options: argparse.Namespace) -> Figures:
    """Seconds from the command to ready, broker and name server, empty and with a log."""
    figures = []
    for key in options.brokers:
        broker = broker_in(directory, key)
        for what in ("start, empty", f"start, {options.gib:g} GiB"):
            begin = time.monotonic()
            with broker:
                figures.append(figure(what, broker.label, time.monotonic() - begin, "s"))
                if what == "start, empty":
                    fill(broker, directory / key, int(options.gib * 2**30 / RECORD_BYTES))
    return figures


def recovery(directory: Path, options: argparse.Namespace) -> Figures:
    """Seconds to ready after SIGKILL under load, with a log of so many GiB; ours alone."""
    broker = ReliableMQBroker(directory / "broker", "ASYNC_FLUSH")
    broker.start()
    fill(broker, directory, int(options.gib * 2**30 / RECORD_BYTES))
    os.kill(broker.pids[0], signal.SIGKILL)
    broker.process.child.wait()
    begin = time.monotonic()
    with broker:
        seconds = time.monotonic() - begin
    return [figure(f"ready after SIGKILL, {options.gib:g} GiB", broker.label, seconds, "s")]


def connections(directory: Path, options: argparse.Namespace) -> Figures:
    """What idle connections, and then one waiting pull on each, cost; ours alone."""
    with ReliableMQBroker(directory / "broker") as broker:
        return asyncio.run(_connections(broker, options.count))


async def _connections(broker: ReliableMQBroker, count: int) -> Figures:
    host, _, port = broker.address.rpartition(":")
    pid = broker.pids[0]
    async with AsyncClient(broker.name_server_address) as client:
        await client.create_topic(TOPIC, 8)
    before = resident_mib(pid)
    writers = []
    for _ in range(count):
        _reader, writer = await asyncio.open_connection(host, int(port))
        writers.append(writer)
    figures = [figure(f"{count:,} connections", broker.label, resident_mib(pid) - before, "MiB")]
    for number, writer in enumerate(writers):
        ext = {
            "consumerGroup": "waiting",
            "topic": TOPIC,
            "queueId": str(number % 8),
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "6",  # suspend, subscription
            "commitOffset": "0",
            "suspendTimeoutMillis": "100000",
            "subscription": "*",
            "subVersion": "0",
        }
        writer.write(encode_command(request(RequestCode.PULL_MESSAGE, ext)))
        if number % 500 == 0:
            await writer.drain()
    await asyncio.sleep(IDLE_SECONDS / 5)
    used = used_seconds([pid])
    await asyncio.sleep(IDLE_SECONDS)
    used = used_seconds([pid]) - used
    what = f"{count:,} connections and waiting pulls"
    figures.append(figure(what, broker.label, resident_mib(pid) - before, "MiB"))
    figures.append(figure(f"{what}, idle", broker.label, used / IDLE_SECONDS, "processors"))
    for writer in writers:
        writer.close()
    return figures


def latency(directory: Path, options: argparse.Namespace) -> Figures:
    """From the call of `send` to the consumer's handler, SYNC_FLUSH, our client; ours alone."""
    with ReliableMQBroker(directory / "broker", "SYNC_FLUSH") as broker:
        delays = asyncio.run(_delays(broker.name_server_address, options.rate, options.seconds))
    cuts = quantiles(delays, n=1000)
    what = f"send to handler at {options.rate:,}/s"
    return [
        figure(f"{what}, median", broker.label, cuts[499] * 1000, "ms"),
        figure(f"{what}, p99", broker.label, cuts[989] * 1000, "ms"),
    ]


async def _delays(name_servers: str, rate: int, seconds: float) -> list[float]:
    delays: list[float] = []
    count = int(rate * seconds)
    ended = asyncio.Event()

    async def handler(messages: Sequence[ReceivedMessage]) -> list[Outcome]:
        now = time.perf_counter_ns()
        delays.extend((now - int(message.body)) / 1e9 for message in messages)
        if len(delays) >= count:
            ended.set()
        return [CONSUMED] * len(messages)

    async with AsyncClient(name_servers) as client:
        await client.create_topic(TOPIC, 8)
        await client.consume(Subscription(group="g", topics={TOPIC: "*"}), handler)
        begin = time.monotonic()
        tasks = []
        for number in range(count):
            pause = begin + number / rate - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            body = b"%d" % time.perf_counter_ns()
            tasks.append(asyncio.create_task(client.send(Message(topic=TOPIC, body=body))))
        await asyncio.gather(*tasks)
        await asyncio.wait_for(ended.wait(), 30)
    return delays[int(rate) :]  # the first second is the warm-up


def topics(directory: Path, options: argparse.Namespace) -> Figures:
    """Sends, creations and stalls, with few and with many topics; ours alone."""
    found = many_topics.topics(directory, options.topics)
    return [figure(what, OURS, value, unit) for what, value, unit in found]


def queues(directory: Path, _options: argparse.Namespace) -> Figures:
    """The same with few and with many queues; ours alone."""
    found = many_topics.queues(directory)
    return [figure(what, OURS, value, unit) for what, value, unit in found]


MEASUREMENTS: dict[str, Callable[[Path, argparse.Namespace], Figures]] = {
    "memory": memory,
    "start": start,
    "recovery": recovery,
    "connections": connections,
    "latency": latency,
    "topics": topics,
    "queues": queues,
}
NEED_JAVA = {"memory", "start", "recovery"}


def main() -> int:
    parser = argparse.ArgumentParser(description="What a broker costs as it grows.")
    parser.add_argument("what", nargs="*", choices=[*MEASUREMENTS, []], default=[])
    parser.add_argument("--brokers", nargs="+", choices=BROKERS, default=list(BROKERS))
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--gib", type=float, default=5.0, help="size of the log")
    parser.add_argument("--count", type=int, default=10_000, help="connections")
    parser.add_argument("--rate", type=int, default=1_000, help="messages a second")
    parser.add_argument("--seconds", type=float, default=15.0, help="length of `latency`")
    parser.add_argument("--topics", type=int, nargs="+", default=[10, 1_000, 10_000])
    options = parser.parse_args()
    reason = missing_tools()
    pin_to_two_cores()
    figures: Figures = []
    for name in options.what or MEASUREMENTS:
        if reason is not None and name in NEED_JAVA:
            print(f"{name} is left out, {reason}", file=sys.stderr)
            continue
        with contextlib.ExitStack() as stack:
            scratch = tempfile.TemporaryDirectory(prefix=f"reliable-mq-{name}-")
            figures += MEASUREMENTS[name](Path(stack.enter_context(scratch)), options)
    settings = {key: value for key, value in vars(options).items() if key != "what"}
    results = raw_results.of_now("scale", settings, figures)
    print(f"raw results: {raw_results.write(results)}")
    print(scale_table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
