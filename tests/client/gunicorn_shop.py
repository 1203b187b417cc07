"""What Gunicorn serves in the tests, and its configuration: loaded, and used, before the fork.

gunicorn --config python:tests.client.gunicorn_shop tests.client.gunicorn_shop:application
"""

import os
from collections.abc import Callable, Iterable
from typing import Any

from reliable_mq import Client, ClientSettings, Message
from reliable_mq.errors import ForkedClient

BROKER = os.environ["SHOP_BROKER"]
SETTINGS = ClientSettings(
    request_timeout_seconds=60.0, connect_timeout_seconds=60.0, heartbeat_seconds=0.05
)

preload_app = True
workers = 1

inherited = Client(BROKER, settings=SETTINGS)
inherited.start()
inherited.send(Message(topic="t", body=b"before the fork"))
clients: list[Client] = []


def post_fork(server: Any, worker: Any) -> None:
    """Make the worker's own client."""
    clients.append(Client(BROKER, settings=SETTINGS))
    clients[0].start()


def worker_exit(server: Any, worker: Any) -> None:
    """Close it."""
    clients[0].close()


def application(
    environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]
) -> Iterable[bytes]:
    """Send with the worker's own client, or with the one that was made before the fork."""
    client = inherited if environ["PATH_INFO"] == "/inherited" else clients[0]
    try:
        result = client.send(Message(topic="t", body=b"from a worker"))
    except ForkedClient as error:
        text = f"ForkedClient: {error}"
    else:
        text = f"stored in {result.queue.topic}"
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {text}".encode()]
