"""Lets clients of tests wait long for their brokers, unless a test says how long.

Three seconds, the default, may pass on a busy machine: the broker of a test runs in the same
process, and waits for the processor and for the disk as the test does.
"""

import inspect
import os
from typing import Any

import msgspec

from reliable_mq.client.administering.thread_browser import Browser
from reliable_mq.client.asyncio_client import DEFAULT_SETTINGS, AsyncClient
from reliable_mq.client.sending.asyncio_batcher import AsyncBatcher
from reliable_mq.client.sending.asyncio_transactions import AsyncTransactions
from reliable_mq.client.sending.thread_sending import Batcher
from reliable_mq.client.thread_client import Client

SECONDS = 60.0
SEND_SECONDS = 3.0
"""How long the verbs that send wait by default."""
PATIENT = msgspec.structs.replace(
    DEFAULT_SETTINGS, request_timeout_seconds=SECONDS, connect_timeout_seconds=SECONDS
)
APPLICATIONS = (
    '{"request_timeout_seconds": 15.0, "connect_timeout_seconds": 15.0,'
    ' "rebalance_retry_seconds": 0.1}'
)
"""How applications reach a broker. Consumers look often for a topic that is not there yet: most
tests begin with a new one, and would wait a second for its first message."""
FACES = (AsyncBatcher, AsyncClient, AsyncTransactions, Batcher, Browser, Client)


def use() -> list[str]:
    """Change the defaults of clients and of their verbs that send; return what was changed."""
    os.environ.setdefault("RELIABLE_MQ_CLIENT", APPLICATIONS)
    changed = []
    for face in FACES:
        for name in dir(face):
            verb: Any = inspect.unwrap(getattr(face, name))
            if inspect.isfunction(verb) and _is_patient_now(verb):
                changed.append(f"{face.__name__}.{name}")
    return changed


def _is_patient_now(verb: Any) -> bool:
    by_name, by_place = verb.__kwdefaults__ or {}, verb.__defaults__ or ()
    changes: dict[str, Any] = {}
    if by_name.get("timeout") == SEND_SECONDS:
        changes["timeout"] = SECONDS
    if by_name.get("settings") is DEFAULT_SETTINGS:
        changes["settings"] = PATIENT
    by_name.update(changes)
    if any(each is DEFAULT_SETTINGS for each in by_place):
        verb.__defaults__ = tuple(
            PATIENT if each is DEFAULT_SETTINGS else each for each in by_place
        )
        return True
    return bool(changes)
