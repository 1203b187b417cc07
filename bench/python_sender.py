"""Our own client as a warm sender in a process of its own, with what `WarmProgram` answers.

    python -m bench.python_sender --namesrv HOST:PORT [--access-key NAME --secret-key SECRET]

Each line of its input, "--threads 16 --seconds 4", is a round: so many tasks send one message after
another. It answers with a line of JSON.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from bench.child_process import WarmChild
from bench.send_cost import BODY, TOPIC
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.connecting.security import Credentials
from reliable_mq.client.settings import ClientSettings
from reliable_mq.message import Message


class PythonSender(WarmChild):
    """The process. It signs if it gets an account."""

    def __init__(
        self, directory: Path, name_servers: str, account: tuple[str, str] | None = None
    ) -> None:
        keys = [] if account is None else ["--access-key", account[0], "--secret-key", account[1]]
        words = [sys.executable, "-m", "bench.python_sender", "--namesrv", name_servers, *keys]
        super().__init__("python_sender", directory, words)


async def _send(client: AsyncClient, tasks: int, seconds: float) -> dict[str, Any]:
    count, begun = 0, time.monotonic()

    async def lane() -> None:
        nonlocal count
        while time.monotonic() - begun < seconds:
            await client.send(Message(topic=TOPIC, body=BODY))
            count += 1

    await asyncio.gather(*(lane() for _ in range(tasks)))
    per_second = count / (time.monotonic() - begun)
    return {"messages": count, "per_second": per_second, "errors": 0}


async def _serve(name_servers: str, settings: ClientSettings) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int)
    parser.add_argument("--seconds", type=float)
    async with AsyncClient(name_servers, settings=settings) as client:
        while line := await asyncio.to_thread(sys.stdin.readline):
            wanted = parser.parse_args(line.split())
            print(json.dumps(await _send(client, wanted.threads, wanted.seconds)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="A warm sender.")
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--access-key")
    parser.add_argument("--secret-key")
    options = parser.parse_args()
    settings = ClientSettings()
    if options.access_key:
        account = Credentials(access_key=options.access_key, secret_key=options.secret_key)
        settings = ClientSettings(credentials=account)
    uvloop.run(_serve(options.namesrv, settings))


if __name__ == "__main__":
    main()
