"""What Celery runs in the tests: a module that made a client before the workers were forked.

celery --app tests.client.celery_shop worker --pool prefork
"""

import os
from typing import Any

from celery import Celery
from celery.signals import worker_process_init, worker_process_shutdown, worker_ready

from reliable_mq import Client, ClientSettings, Message
from reliable_mq.errors import ForkedClient

BROKER = os.environ["SHOP_BROKER"]
FOLDER = os.environ["SHOP_TASKS"]
SETTINGS = ClientSettings(
    request_timeout_seconds=60.0, connect_timeout_seconds=60.0, heartbeat_seconds=0.05
)

app = Celery("shop", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": FOLDER,
        "data_folder_out": FOLDER,
        "control_folder": FOLDER,
        "polling_interval": 0.05,
    },
    worker_max_tasks_per_child=1,
    task_ignore_result=True,
)

inherited = Client(BROKER, settings=SETTINGS)
inherited.start()
inherited.send(Message(topic="t", body=b"before the fork"))
clients: list[Client] = []


@worker_process_init.connect
def start(**_: Any) -> None:
    """Make the worker's own client, and say so."""
    clients.append(Client(BROKER, settings=SETTINGS))
    clients[0].start()
    print("a worker has begun")  # Celery logs it


@worker_process_shutdown.connect
def stop(**_: Any) -> None:
    """Close it."""
    clients[0].close()


@app.task
def place(number: int) -> None:
    """Send an order with the worker's own client; say what becomes of the inherited one."""
    clients[0].send(Message(topic="t", body=f"order {number}".encode()))
    try:
        inherited.send(Message(topic="t", body=b"not from here"))
    except ForkedClient as error:
        clients[0].send(Message(topic="t", body=str(error).encode()))


@worker_ready.connect
def begin(**_: Any) -> None:
    """Give the workers something to do."""
    for number in (1, 2):
        place.delay(number)
