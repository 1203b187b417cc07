"""What hooks of sending make of messages: it is sent, unless nobody could send it."""

import re
from typing import Any

import msgspec
import pytest
from tests.client.observing.test_hooks import MESSAGE, Sent, hooks, send

from reliable_mq.client.observing.middleware import Middleware, Sending
from reliable_mq.limits import MESSAGE_BODY_SIZE_MAX


class Adds(Middleware):
    """Puts a message with more properties into the place of each."""

    def __init__(self, **properties: Any) -> None:
        self._properties = properties

    def before_send(self, sending: Sending) -> None:
        sending.messages = [
            msgspec.structs.replace(each, properties={**each.properties, **self._properties})
            for each in sending.messages
        ]


def test_what_a_hook_puts_into_a_message_is_sent() -> None:
    sent = Sent()
    send(hooks(Adds(region="eu")), sent)

    assert sent.messages[0].properties == {"region": "eu"}


@pytest.mark.parametrize("value", ["x" * 40_000, "a\x01b", 7])
def test_a_message_that_a_hook_made_illegal_is_sent_as_it_was(
    value: object, caplog: pytest.LogCaptureFixture
) -> None:
    sent = Sent()
    send(hooks(Adds(region=value)), sent)

    assert sent.messages[0].properties == {}
    assert re.search(
        r"a middleware made message \w+ \(key .*\) of topic orders invalid", caplog.text
    )


def test_no_hook_is_blamed_for_what_was_illegal_before(caplog: pytest.LogCaptureFixture) -> None:
    wrong = msgspec.structs.replace(MESSAGE, topic="no name")
    sent = Sent()
    send(hooks(Adds(region="eu")), sent, wrong)

    assert [(each.topic, each.properties) for each in sent.messages] == [("no name", {})]
    assert not caplog.records  # who sends it is told


def test_a_hook_may_change_a_message_with_a_body_that_only_this_client_allows() -> None:
    large = msgspec.structs.replace(MESSAGE, body=bytes(MESSAGE_BODY_SIZE_MAX + 1))
    sent = Sent()
    send(hooks(Adds(region="eu")), sent, large)

    assert sent.messages[0].properties == {"region": "eu"}


class Loses(Middleware):
    """Takes the messages away."""

    def before_send(self, sending: Sending) -> None:
        sending.messages.clear()


class Spoils(Middleware):
    """Puts something else into the place of a message."""

    def before_send(self, sending: Sending) -> None:
        sending.messages = [None]  # type: ignore[list-item] # as a user may


@pytest.mark.parametrize("bad", [Loses(), Spoils()])
def test_no_hook_can_take_a_message_away(bad: Middleware, caplog: pytest.LogCaptureFixture) -> None:
    sent, hooked = Sent(), hooks(bad)
    for _ in range(3):
        send(hooked, sent)

    assert [each.body for each in sent.messages] == [b"{}"] * 3
    assert len(caplog.records) == 1  # not with each message
