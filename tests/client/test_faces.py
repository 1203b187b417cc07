"""Threads and coroutines have the same verbs, with the same parameters and the same words."""

import inspect
from typing import Any

import pytest
from tests.house.figures import public_names

from reliable_mq.client.administering.asyncio_admin import AsyncAdmin, AsyncGroups, AsyncOffsets
from reliable_mq.client.administering.asyncio_messages import AsyncDeadLetters, AsyncMessages
from reliable_mq.client.administering.asyncio_topics import AsyncTopics
from reliable_mq.client.administering.thread_admin import (
    Admin,
    DeadLetters,
    Groups,
    Messages,
    Offsets,
    Topics,
)
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.asyncio_pull_consumer import AsyncPullConsumer
from reliable_mq.client.consuming.asyncio_push_consumer import AsyncPushConsumer
from reliable_mq.client.consuming.asyncio_simple_consumer import AsyncSimpleConsumer
from reliable_mq.client.consuming.thread_pull_consumer import PullConsumer
from reliable_mq.client.consuming.thread_simple_consumer import SimpleConsumer
from reliable_mq.client.sending.asyncio_batcher import AsyncBatcher
from reliable_mq.client.sending.thread_sending import Batcher
from reliable_mq.client.thread_client import Client, PushConsumer

TWINS: tuple[tuple[type, type], ...] = (
    (Client, AsyncClient),
    (PushConsumer, AsyncPushConsumer),
    (PullConsumer, AsyncPullConsumer),
    (SimpleConsumer, AsyncSimpleConsumer),
    (Batcher, AsyncBatcher),
    (Admin, AsyncAdmin),
    (Topics, AsyncTopics),
    (Groups, AsyncGroups),
    (Offsets, AsyncOffsets),
    (Messages, AsyncMessages),
    (DeadLetters, AsyncDeadLetters),
)

FUTURES = {"send_async", "commit_async"}
"""Verbs that hand a future to a thread: on a loop any verb becomes one by `create_task`."""

OF_A_MEMBER = {
    *("broker_lost", "consumer_data", "fetched", "group_name", "may_pull"),
    *("on_assigned", "on_reset", "on_revoked"),
    *("rebalance_soon", "reset_offsets", "start", "status"),
}
"""What the client and its queue reader call of a consumer."""

ONLY_ON_THE_LOOP: dict[type, set[str]] = {
    AsyncPushConsumer: OF_A_MEMBER,
    AsyncSimpleConsumer: OF_A_MEMBER,
    AsyncBatcher: {"give_up", "send_soon", "accept"},  # what the face for threads calls
    AsyncMessages: {"next_page", "scan"},  # the same
}


def shown(face: type) -> set[str]:
    return {name for name in dir(face) if not name.startswith("_")}


def parameters(verb: Any) -> list[tuple[str, Any, Any]]:
    """Return what a caller sees of a verb's parameters: names, kinds and defaults."""
    found = inspect.signature(verb).parameters.values()
    return [(each.name, each.kind, each.default) for each in found]


@pytest.mark.parametrize(("face", "twin"), TWINS)
def test_both_faces_have_the_same_verbs(face: type, twin: type) -> None:
    assert shown(face) - FUTURES == shown(twin) - ONLY_ON_THE_LOOP.get(twin, set())


@pytest.mark.parametrize(("face", "twin"), TWINS)
def test_a_verb_has_the_same_parameters_in_both_faces(face: type, twin: type) -> None:
    for name in shown(face) & shown(twin):
        verb, other = getattr(face, name), getattr(twin, name)
        assert callable(verb) == callable(other), name
        if callable(verb):
            assert parameters(verb) == parameters(other), name


def test_both_clients_are_made_of_the_same_values() -> None:
    assert parameters(Client.__init__) == parameters(AsyncClient.__init__)


@pytest.mark.parametrize(("face", "twin"), TWINS)
def test_a_verb_that_points_to_its_twin_has_the_words_of_it(face: type, twin: type) -> None:
    for name in shown(face) & shown(twin):
        verb, other = getattr(face, name), getattr(twin, name)
        assert inspect.getdoc(verb), name
        assert f"`{twin.__name__}.{name}`" not in (verb.__doc__ or ""), name
        if face is Admin:
            continue  # it has no verbs of its own
        assert inspect.getdoc(other), name


def test_a_client_shows_only_what_an_application_uses() -> None:
    """Given all public names, those that an object gets when it is made included, when both clients
    are compared, then on the loop only `transactions` stands alone, which applications may use."""
    on_loop, in_threads = set(public_names(AsyncClient)), set(public_names(Client))
    assert on_loop - in_threads == {"transactions"}
    assert in_threads - on_loop == {"send_async"}
