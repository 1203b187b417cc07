"""`reliable-mq walk`: one message passes all stations, and each station is printed.

Everything is real: a broker, two applications with a database, and the reconciliation at the end.
"""

import shutil
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event
from typing import Any

from reliable_mq.app.application import ReliableMQ
from reliable_mq.cli import printing
from reliable_mq.cli.saying import say, say_json
from reliable_mq.cli.walk_recorder import Landmark, WalkRecorder, WalkStep
from reliable_mq.client.thread_client import Client
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.reconcile.runs.spark_run import RunOptions, reconcile
from reliable_mq.runtime.broker_server import BrokerOptions, BrokerServer
from reliable_mq.runtime.java_home import use_java
from reliable_mq.runtime.loop_thread import LoopThread
from reliable_mq.testing.local_servers import LocalValkey

TOPIC, GROUP = "orders", "payments"
WAIT_SECONDS_MAX = 60.0

LANDMARKS = tuple(
    Landmark(station, f"reliable_mq.{function}")
    for station, function in (
        ("1 outbox", "outbox.sql_outbox:SqlOutbox.write_stub"),
        ("1 outbox", "outbox.relay:Relay.run_once"),
        ("2 client", "client.sending.producer:SendFlows.begin"),
        ("3 wire", "wire.command:encode_command"),
        ("4 name_server", "name_server.routes:RouteTable.route"),
        ("5 broker_core.requests", "broker_core.requests.send:send_message"),
        ("6 broker_core.store", "broker_core.store.appender:Appender.append_fields"),
        ("6 broker_core.store", "runtime.log_writer:LogWriter.sync"),
        ("7 broker_core.dispatch", "broker_core.store.message_store:MessageStore.dispatch_up_to"),
        ("8 broker_core.delivery", "broker_core.delivery.long_poll:WaitingPulls.arrived"),
        ("2 client", "client.consuming.pulling:delivery"),
        ("9 consume", "consume.asyncio_delivery:MessageProcessing.handle"),
        ("10 idempotency", "idempotency.redis_leases:RedisLeases.claim"),
        ("10 idempotency", "idempotency.claim:first_step"),
        ("10 idempotency", "idempotency.sql_consume_log:SqlConsumeLog.insert_consumed"),
        ("11 confirm", "confirm.sql_confirmation:SqlConfirmation.confirm"),
        ("15 reconcile", "reconcile.runs.spark_run:reconcile"),
        ("15 reconcile", "reconcile.report.summary:summarize"),
    )
)


def command(as_json: printing.AsJson = False) -> None:
    """Send a sample message, and print its path through all stations."""
    steps, verdicts = walk()
    if as_json:
        rows = [
            {"station": step.station, "function": step.function, "says": step.says}
            for step in steps
        ]
        say_json({"steps": rows, "verdicts": verdicts})
        return
    width = max(len(step.station) for step in steps)
    for step in steps:
        name = step.function.removeprefix("reliable_mq.").replace(":", ".")
        say(f"{step.station:<{width}}  {name}")
        say(f"{'':<{width}}    {step.says}")
    for verdict, count in verdicts.items():
        say(f"{'verdict':<{width}}  {verdict}: {count}")


def walk() -> tuple[list[WalkStep], dict[str, Any]]:
    """Send one message from one application to another; return its steps and the verdicts.

    Raises:
        TimeoutError: the message does not arrive.
    """
    use_java()
    directory = Path(tempfile.mkdtemp(prefix="reliable-mq-walk-"))
    try:
        with WalkRecorder(LANDMARKS) as recorder:
            return recorder.steps, _verdicts_of_one_message(directory, recorder)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _verdicts_of_one_message(directory: Path, recorder: WalkRecorder) -> dict[str, Any]:
    database = f"sqlite:///{directory / 'walk.db'}"
    loop = LoopThread("broker")
    options = BrokerOptions(store=directory / "store", port=0, name_server_port=0)
    broker = BrokerServer(options)
    loop.run(broker.start())
    valkey = LocalValkey(directory / "valkey")
    try:
        redis = valkey.start()
        since = _send_and_consume(broker.name_server_address, database, redis, recorder)
    finally:
        valkey.stop()
        loop.run(broker.close())
        loop.close()
    summary = reconcile(
        RunOptions(
            database=database,
            store=str(directory / "store"),
            out=directory / "reconcile",
            now=datetime.now(UTC),
            grace=timedelta(0),
            since=since,
        )
    )
    verdicts: dict[str, Any] = summary["verdicts"]
    return verdicts


def _send_and_consume(broker: str, database: str, redis: str, recorder: WalkRecorder) -> datetime:
    """Let one application wait for a message, then send it from another while recording.

    Returns when the message was sent.
    """
    sender = ReliableMQ("shop", broker=broker, database=database)
    sender.topic(TOPIC, groups=[GROUP])
    sender.create_tables()
    receiver = ReliableMQ("bank", broker=broker, database=database, redis=redis)
    arrived = Event()

    @receiver.consumer(TOPIC, group=GROUP)
    def take_payment(_order: bytes, message: ReceivedMessage) -> None:
        if message.body == b"order 7":
            arrived.set()

    with Client(broker) as client, receiver:
        client.create_topic(TOPIC, queues=1)
        _wait_until_reading(client)
        recorder.is_on = True
        since = datetime.now(UTC)
        with sender.transaction() as tx:
            tx.send(TOPIC, b"order 7")
        if not arrived.wait(WAIT_SECONDS_MAX):
            raise TimeoutError(f"the message did not arrive; it did not pass {recorder.missed}")
    sender.close()
    return since


def _wait_until_reading(client: Client) -> None:
    """Wait until the receiver has consumed a first message: then its pull waits at the broker."""
    client.send(Message(topic=TOPIC, body=b"are you there?"))
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        progress = client.consumer_progress(GROUP, TOPIC)
        if progress and all(committed >= 1 for committed, _ in progress.values()):
            return
        time.sleep(0.05)
    raise TimeoutError(f"the receiver consumed no message in {WAIT_SECONDS_MAX:g} s")
