"""The catalogue of log events is whole, and nothing logs beside it."""

import ast
import logging
import pickle
import re
from collections.abc import Iterator
from functools import cache
from inspect import unwrap
from pathlib import Path

import pytest

from reliable_mq.telemetry import application_events, broker_events, client_events
from reliable_mq.telemetry.log_event import TAKEN, LogEvent
from reliable_mq.telemetry.log_events import EVENTS, PARTS

SOURCE = Path(__file__).parents[2] / "src" / "reliable_mq"
WRITES = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
_MAY_WRITE = re.compile(rf"\.\s*({'|'.join(sorted(WRITES))})\s*\(")
MODULES = {
    "application_events": application_events,
    "broker_events": broker_events,
    "client_events": client_events,
}
ABOUT_A_MESSAGE = {"message_id", "message_ids"}
SPECIAL = {"traceback_of", "level"}


def faults_of(event: LogEvent) -> list[str]:
    """Return what is wrong with a declaration."""
    faults = [
        f"field {name} is an attribute of every record" for name in event.fields if name in TAKEN
    ]
    if not event.fields and "%" in event.text:
        faults.append("a text without fields is not formatted: write a single %")
    return faults


@cache
def log_calls(source: str) -> list[tuple[ast.Call, str]]:
    """Return each call that may write a log line, and what it is called on."""
    return list(_log_calls(source)) if _MAY_WRITE.search(source) else []


def _log_calls(source: str) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr in WRITES or node.func.attr == "log":
            on = ast.unparse(node.func.value)
            if (node.func.attr in WRITES and "log" in on.lower().split(".")[-1]) or (
                node.func.attr == "log" and on.split(".")[0] in MODULES
            ):
                yield node, on


def modules() -> list[Path]:
    return [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "log_event.py"]


def test_each_event_has_one_name_that_is_its_constant() -> None:
    for module in MODULES.values():
        for constant, value in vars(module).items():
            if isinstance(value, LogEvent):
                assert value.name == constant.lower()
    assert sum(map(len, PARTS.values())) == len(EVENTS)


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.name)
def test_an_event_can_be_written(event: LogEvent) -> None:
    assert faults_of(event) == []
    assert not event.text.endswith(".")


@pytest.mark.parametrize("event", EVENTS.values(), ids=lambda event: event.name)
def test_a_line_about_a_message_has_its_id_and_its_key(event: LogEvent) -> None:
    fields = set(event.fields)
    if fields & ABOUT_A_MESSAGE and event.name not in {*KEYLESS}:
        assert fields & {"key", "keys"}


KEYLESS = (
    *("half_left", "half_ended", "check_back_answered"),
    *("check_back_postponed", "check_back_not_joined"),
    "tick_fired",
)
"""A check-back and the end of a half message carry no key; a tick may have many messages."""


def test_no_line_is_written_beside_the_catalogue() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{call.lineno}"
        for path in modules()
        for call, on in log_calls(path.read_text())
        if on.split(".")[0] not in MODULES and on != "event"
    ]
    assert found == []


def test_each_call_gives_exactly_the_declared_fields() -> None:
    wrong = []
    used = set()
    for path in modules():
        for call, on in log_calls(path.read_text()):
            event = getattr(MODULES[on.split(".")[0]], on.split(".")[1])
            used.add(event.name)
            given = {word.arg for word in call.keywords if word.arg} - SPECIAL
            has_more = any(word.arg is None for word in call.keywords)
            fits = given <= set(event.fields) if has_more else given == set(event.fields)
            if not fits:
                wrong.append(f"{path.relative_to(SOURCE)}:{call.lineno} {event.name}: {given}")
    assert wrong == []
    chosen = {
        "pull_failed",
        "received",
        "consumed",
        "topic_unknown",
        "topic_awaited",
    }  # by a variable `event`
    assert EVENTS.keys() - used <= chosen


def test_a_planted_line_is_found() -> None:
    planted = "log.info('x')\nself._log.error('y')\nclient_events.PEER_LOST.log(log, peer='a')"
    assert len(log_calls(planted)) == 3


def test_a_record_has_the_event_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("reliable_mq.test")
    unwrap(LogEvent.log)(client_events.PEER_LOST, log, peer="a:1", error="gone")
    (record,) = caplog.records
    assert (record.event, record.peer, record.error) == ("peer_lost", "a:1", "gone")  # type: ignore[attr-defined]
    assert record.message == "a:1 is lost: gone"
    assert record.filename == Path(__file__).name


class Unreadable(Exception):
    """An error whose text raises."""

    def __str__(self) -> str:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TimeoutError(), "TimeoutError"),
        (ValueError("no\x00w"), "no\x00w"),
        (Unreadable(), "Unreadable, whose text cannot be read"),
    ],
    ids=["empty", "plain", "unreadable"],
)
def test_an_error_is_a_text_in_the_record(
    error: Exception, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    write = unwrap(LogEvent.log)
    write(
        client_events.PEER_LOST,
        logging.getLogger("reliable_mq.test"),
        peer="a:1",
        error=error,
    )
    (record,) = caplog.records
    assert record.__dict__["error"] == text
    assert pickle.loads(pickle.dumps(record)).getMessage() == record.getMessage()
