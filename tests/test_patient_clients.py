"""The clients of tests wait long for their brokers."""

import inspect
from typing import Any

import pytest
from tests import patient_clients

from reliable_mq import Client
from reliable_mq.client.asyncio_client import AsyncClient


@pytest.mark.parametrize("face", [AsyncClient, Client])
def test_clients_and_their_verbs_wait_long_unless_a_test_says_how_long(face: Any) -> None:
    of_verb = inspect.signature(face.send).parameters
    assert of_verb["timeout"].default == patient_clients.SECONDS
    assert inspect.signature(face).parameters["settings"].default is patient_clients.PATIENT


def test_no_verb_is_left_out() -> None:
    """The first call was at the start of this process."""
    assert patient_clients.use() == []
