"""A line of the log for each message, with its facts as fields."""

import json
import logging

import pytest
from tests.client.observing.seen import QUEUE, received, stored

from reliable_mq.client.observing.logged import LoggingMiddleware
from reliable_mq.client.observing.middleware import ClientIdentity, Delivery, Ending, Sending
from reliable_mq.errors import RequestTimeout
from reliable_mq.message import Decision, Half, Message
from reliable_mq.outcomes import CONSUMED, Reject, Retry

#: what every record has; the rest came as fields
PLAIN = logging.LogRecord("", 0, "", 0, "", (), None).__dict__.keys() | {"message", "asctime"}
ORDER = Message(
    topic="orders", body=b"secret", tag="paid", keys=("o1",), message_id="A" * 32, ordering_key="c1"
)


def fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in record.__dict__.items() if name not in PLAIN}


def sending() -> Sending:
    return Sending(
        verb="send_many",
        messages=[ORDER, ORDER, ORDER],
        group="shop",
        origin=ClientIdentity(client_id="c"),
        begun=0.0,
        begun_ms=0,
        seconds=0.25,
        results=[stored(), RequestTimeout("no answer"), None],
    )


def delivery() -> Delivery:
    return Delivery(
        verb="process",
        group="payments",
        messages=[received(), received(), received(), received()],
        origin=ClientIdentity(),
        begun=0.0,
        begun_ms=0,
        seconds=0.25,
        outcomes=[CONSUMED, Retry(5.0, reason="no money"), Reject("no payer"), Retry(counts=False)],
    )


def test_each_message_that_is_sent_has_a_line_and_what_failed_is_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "reliable_mq.messages")
    LoggingMiddleware().after_send(sending())

    one, two, three = caplog.records
    assert fields(one) == {
        "event": "sent",
        "producer_group": "shop",
        "seconds": 0.25,
        "topic": "orders",
        "message_id": "A" * 32,
        "tag": "paid",
        "key": "o1",
        "keys": ["o1"],
        "ordering_key": "c1",
        "outcome": "SEND_OK",
        "broker": QUEUE.broker_name,
        "queue_id": 2,
        "queue_offset": 7,
        "result": "sent",
        "detail": "",
    }
    assert [r.levelname for r in caplog.records] == ["INFO", "WARNING", "INFO"]
    why = "RequestTimeout: no answer"
    assert two.message == f"not sent: message {'A' * 32} (key o1) to topic orders: {why}"
    assert fields(three)["outcome"] == "unanswered"
    assert "secret" not in json.dumps([fields(r) for r in caplog.records]) + caplog.text


def test_each_message_that_is_handled_has_a_line_with_its_outcome(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "reliable_mq.messages")
    LoggingMiddleware().after_consume(delivery())

    outcomes = [(fields(r)["outcome"], fields(r).get("error"), r.levelname) for r in caplog.records]
    assert outcomes == [
        ("consumed", None, "INFO"),
        ("later", "no money", "WARNING"),
        ("dead", "no payer", "WARNING"),
        ("postponed", None, "INFO"),
    ]
    assert fields(caplog.records[0])["attempt"] == 1
    assert (
        caplog.records[1].message
        == f"later: message {'A' * 32} (key -) of topic orders by group payments: no money"
    )


def test_a_handler_that_raised_is_a_warning_with_the_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failed = delivery()
    failed.outcomes, failed.error = None, ZeroDivisionError("by zero")
    LoggingMiddleware(logging.getLogger("mine")).after_consume(failed)

    assert {fields(r)["error"] for r in caplog.records} == {"ZeroDivisionError: by zero"}
    assert {r.name for r in caplog.records} == {"mine"}


def test_what_nobody_listens_to_is_not_put_together(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "reliable_mq.messages")
    LoggingMiddleware(level=logging.DEBUG).after_send(sending())

    assert caplog.records == []


@pytest.mark.parametrize("error", [None, RequestTimeout("no answer")])
def test_how_a_half_message_was_ended_is_logged(
    error: Exception | None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reliable_mq.messages")
    half = Half(message_id="A", group="shop", queue=QUEUE, half_offset=1, commit_log_offset=2)
    LoggingMiddleware().after_end(
        Ending(
            half=half, decision=Decision.COMMIT, origin=ClientIdentity(), begun_ms=0, error=error
        )
    )

    (record,) = caplog.records
    assert record.levelname == ("INFO" if error is None else "WARNING")
    assert record.message.startswith("commit of half message A of topic orders")
    assert fields(record)["outcome"] == "commit"
