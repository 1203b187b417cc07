"""Scenes of `bench.by_message` with workers of `@mq.consumer` and PostgreSQL."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from sqlalchemy import Engine, create_engine, select

from bench.by_message_app import effects, metadata
from bench.child_process import LoggedProcess
from bench.quiet import used_seconds
from bench.reliable_mq_broker import COMMAND
from reliable_mq import AsyncClient, Message, ReliableMQ
from reliable_mq.testing.local_servers import LocalPostgres

QUEUES = 4
BURST = 200

Figures = list[dict[str, Any]]


class Place(NamedTuple):
    """Where the application runs."""

    broker: str
    database: str
    directory: Path


def worker(place: Place, by: str, work: str, number: int) -> LoggedProcess:
    """Start a worker of the application, and wait until it consumes."""
    environment = {
        "BY": by,
        "WORK": work,
        "RELIABLE_MQ_BROKER": place.broker,
        "RELIABLE_MQ_DATABASE": place.database,
    }
    running = LoggedProcess(
        (*COMMAND, "run", "bench.by_message_app:mq"),
        place.directory / f"{work}-{by}-{number}.log",
        environment=environment,
    )
    running.wait_for("application_ready|is ready and consumes", 60)
    return running


@contextmanager
def placed(address: str) -> Iterator[tuple[Place, Engine]]:
    """Give a database with the tables of the application."""
    with tempfile.TemporaryDirectory(prefix="reliable-mq-by-message-") as name:
        Path(name).chmod(0o755)  # PostgreSQL runs as nobody
        server = LocalPostgres(Path(name) / "pg")
        url = server.start()
        engine = create_engine(url)
        try:
            ReliableMQ("by-message", broker=address, database=url).create_tables()
            metadata.create_all(engine)
            yield Place(address, url, Path(name)), engine
        finally:
            engine.dispose()
            server.stop()


async def numbered(client: AsyncClient, topic: str, numbers: range) -> None:
    """Send messages with numbers."""
    bodies = [b'{"number":%d,"at":%f}' % (number, time.time()) for number in numbers]
    await client.send_many([Message(topic=topic, body=body) for body in bodies])


def rows_of(engine: Engine) -> list[tuple[int, float, float]]:
    """Return the number, the time of the send and that of the effect of each row."""
    wanted = select(effects.c.number, effects.c.sent, effects.c.done).order_by(effects.c.done)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(wanted)]


async def until_done(engine: Engine, count: int, seconds: float) -> list[tuple[int, float, float]]:
    """Wait until so many messages have an effect; return all rows."""
    async with asyncio.timeout(seconds):
        while len(rows := await asyncio.to_thread(rows_of, engine)) < count:
            await asyncio.sleep(0.2)
    return rows


async def applied(address: str, mode: str, seconds: float) -> Figures:
    """One worker of the application."""
    figures: Figures = []
    for work in ("quick", "mixed"):
        with placed(address) as (place, engine):
            topic, count = f"{work}-{mode}", int(300 * seconds)
            async with AsyncClient(address) as client:
                await client.create_topic(topic, QUEUES)
                for at in range(0, count, 500):
                    await numbered(client, topic, range(at, min(at + 500, count)))
            running = await asyncio.to_thread(worker, place, mode, work, 0)
            rows = await until_done(engine, count, 60 * seconds)
            used = used_seconds([running.child.pid])
            running.stop()
        assert len(rows) == count
        took = rows[-1][2] - rows[count // 10][2]
        name = f"applied, {work}"
        figures += [
            {"what": f"{name}: handled", "value": round(0.9 * count / took), "unit": "messages/s"},
            {"what": f"{name}: processor", "value": round(used / count * 1e6), "unit": "us"},
        ]
    return figures


async def killed(address: str, mode: str, seconds: float) -> Figures:
    """Two workers of the application; one is killed."""
    with placed(address) as (place, engine):
        topic, number = f"steady-{mode}", 0
        async with AsyncClient(address) as client:
            await client.create_topic(topic, QUEUES)
            workers = [await asyncio.to_thread(worker, place, mode, "steady", n) for n in (0, 1)]
            await asyncio.sleep(5.0)
            begun = time.monotonic()
            is_killed = False
            while (passed := time.monotonic() - begun) < 2 * seconds:
                if passed > seconds / 2 and not is_killed:
                    is_killed = True
                    await numbered(client, topic, range(number, number + BURST))
                    number += BURST
                    await asyncio.sleep(0.15)  # both workers have some of them
                    workers[0].kill()
                await numbered(client, topic, range(number, number + 4))
                number += 4
                await asyncio.sleep(0.1)
        rows = await until_done(engine, number, 120.0)
        workers[1].stop()
    waits = sorted(done - sent for _, sent, done in rows)
    return [
        {"what": "killed: half wait", "value": round(median(waits) * 1000), "unit": "ms at most"},
        {
            "what": "killed: wait over 1 s",
            "value": sum(wait > 1 for wait in waits),
            "unit": f"of {number}",
        },
        {"what": "killed: the longest wait", "value": round(waits[-1], 1), "unit": "s"},
        {"what": "killed: effects twice", "value": len(rows) - number, "unit": ""},
    ]
