"""`--log-format`, `--log-level`: what a line looks like, and whose configuration counts."""

import io
import json
import logging
import logging.config
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forked_programs import Programs

from reliable_mq import ReliableMQ
from reliable_mq.cli.log_options import PlainFormatter, hush_outages, write_log
from reliable_mq.errors import ConfigurationError
from reliable_mq.telemetry import application_events, client_events
from reliable_mq.telemetry.json_lines import JsonFormatter

COMMAND = ("-m", "reliable_mq.cli.main")
LOG = logging.getLogger("reliable_mq.test.formats")


def written(formatter: logging.Formatter) -> list[str]:
    """Return the lines of one event, of one with a traceback, and of another program."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    other = logging.getLogger("others")
    for log in (LOG, other):
        log.addHandler(handler)
        log.propagate = False
    try:
        client_events.PEER_LOST.log(LOG, peer="a:1\x1b[2J", error=OSError("gone\nforged line"))
        error = ZeroDivisionError("by zero")
        application_events.OPERATION_FAILED.log(LOG, traceback_of=error, what="relay", error=error)
        other.warning("of %s", "theirs", extra={"tenant": 7})
    finally:
        for log in (LOG, other):
            log.removeHandler(handler)
            log.propagate = True
    return stream.getvalue().splitlines()


def test_a_json_line_is_one_object_with_the_fields_of_its_event() -> None:
    first, second, third = map(json.loads, written(JsonFormatter()))
    assert first["event"] == "peer_lost"
    assert (first["peer"], first["error"]) == ("a:1\x1b[2J", "gone forged line")
    assert first["message"].startswith("a:1\x1b[2J is lost")
    assert (first["level"], first["logger"]) == ("WARNING", LOG.name)
    assert first["time"].endswith("+00:00")
    assert second["exception"].splitlines()[-1] == "ZeroDivisionError: by zero"
    assert (third["message"], third["tenant"]) == ("of theirs", 7)
    assert "event" not in third


def test_a_json_line_is_json_whatever_its_fields_are() -> None:
    """Given a NaN, a loop, or a key that is no text, then every field is there as a text."""

    def line_of(value: object) -> dict[str, Any]:
        record = logging.makeLogRecord({"msg": "m", "value": value, "stack_info": "Stack: f"})

        def refused(name: str) -> None:
            raise AssertionError(name)

        found: dict[str, Any] = json.loads(JsonFormatter().format(record), parse_constant=refused)
        return found

    loop: list[object] = []
    loop.append(loop)
    assert line_of(1.5)["value"] == 1.5
    assert line_of(1.5)["stack"] == "Stack: f"
    assert line_of(2.004000000000815)["value"] == 2.004000000000815, "another program's"
    assert line_of(float("nan"))["value"] == "nan"
    assert line_of(loop)["value"] == "[[...]]"
    assert line_of({(1, 2): 3})["value"] == "{(1, 2): 3}"


def test_no_line_of_text_or_json_can_be_forged() -> None:
    for formatter in (JsonFormatter(), PlainFormatter("%(levelname)s %(message)s")):
        first = written(formatter)[0]
        assert "\x1b" not in first
        assert "forged line" in first


def test_times_are_utc_in_text_as_in_json_and_our_numbers_have_no_tail() -> None:
    ours = {"created": 0.25, "msecs": 250.0, "event": "peer_back", "seconds": 2.004000000000815}
    record = logging.makeLogRecord({"msg": "m", "levelname": "INFO", **ours})

    text = PlainFormatter("%(asctime)s %(levelname)s %(message)s").format(record)
    line = json.loads(JsonFormatter().format(record))

    assert text == "1970-01-01T00:00:00.250Z INFO m [peer_back]"
    assert (line["time"], line["seconds"]) == ("1970-01-01T00:00:00.250+00:00", 2.004)


def test_a_line_of_text_ends_with_the_name_of_its_event() -> None:
    lines = written(PlainFormatter("%(levelname)s %(message)s"))
    assert lines[0].endswith("[peer_lost]")
    assert lines[-1] == "WARNING of theirs"


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    with Programs("reliable_mq.app.application", "reliable_mq.cli.resend", "psycopg") as made:
        yield made


Resend = Callable[..., str]


@pytest.fixture
def run_resend(programs: Programs, tmp_path: Path) -> Resend:
    """Run `resend --once` of an application; return its standard error."""

    def run(*words: str, application: str, **variables: str) -> str:
        (tmp_path / "log_shop.py").write_text(application)
        done = programs.run(
            [*COMMAND, "resend", "log_shop:mq", "--once", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    return run


@pytest.fixture
def shop(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    mq = ReliableMQ("shop", database=url)
    mq.create_tables()
    mq.close()
    return f"""
import logging
from reliable_mq import ReliableMQ
from reliable_mq.telemetry import client_events
class Loud(ReliableMQ):
    def resend_once(self):
        for event in (client_events.PEER_LOST, client_events.PULL_UNANSWERED):
            words = dict.fromkeys(event.fields, 1)
            event.log(logging.getLogger("reliable_mq.x"), **words)
        return {{"main": {{}}}}
mq = Loud("shop", database={url!r})
"""


def test_options_win_over_variables_and_variables_over_the_application(
    run_resend: Resend, shop: str
) -> None:
    quiet = shop.replace('mq = Loud("shop"', 'mq = Loud("shop", log_level="ERROR"')
    assert run_resend(application=quiet) == ""
    loud = run_resend(application=quiet, RELIABLE_MQ_LOG_LEVEL="warning")
    assert "[peer_lost]" in loud
    json_line = run_resend(
        *("--log-format", "JSON", "--log-level", "DEBUG"),
        application=quiet,
        RELIABLE_MQ_LOG_FORMAT="text",
    )
    events = [json.loads(line).get("event") for line in json_line.splitlines()]
    assert events[-2:] == ["peer_lost", "pull_unanswered"]


def test_an_application_that_has_configured_logging_gets_no_handler_of_ours(
    run_resend: Resend, shop: str
) -> None:
    own = shop.replace(
        "import logging\n",
        "import logging\nlogging.basicConfig(level=20, format='MINE %(message)s')\n",
    )
    said = run_resend("--log-format", "json", application=own)
    assert [line.split()[0] for line in said.splitlines()] == ["MINE"]
    said = run_resend("--log-level", "debug", application=own)
    assert len(said.splitlines()) == 2
    assert "[" not in said


def test_a_handler_on_our_logger_counts_as_a_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = logging.getLogger("reliable_mq")
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(ours, "handlers", [logging.NullHandler()])
    write_log("json", None)
    assert root.handlers == []


@pytest.mark.parametrize("setting", [{"log_level": "loud"}, {"log_format": "xml"}])
def test_a_wrong_setting_is_told(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        ReliableMQ("shop", **setting)


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list", "--broker", "127.0.0.1:1"),
        ("stub", "list", "--db", "postgresql+psycopg://u:p@127.0.0.1:1/x"),
    ],
)
def test_a_command_that_asks_once_tells_a_lost_peer_in_one_line(
    programs: Programs, words: tuple[str, ...]
) -> None:
    done = programs.run([*COMMAND, *words])
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")


def test_commands_leave_the_loggers_as_they_were() -> None:
    log = logging.getLogger("reliable_mq.runtime.links")
    undo = hush_outages()
    assert not log.isEnabledFor(logging.WARNING)
    undo()
    assert log.level == logging.NOTSET


def test_any_program_may_name_the_formatter_in_its_configuration() -> None:
    written = io.StringIO()
    logger = logging.getLogger("program.of.its.own")
    formatter = "reliable_mq.telemetry.json_lines.JsonFormatter"
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"json": {"()": formatter}},
            "handlers": {
                "here": {
                    "class": "logging.StreamHandler",
                    "formatter": "json",
                    "stream": written,
                }
            },
            "loggers": {logger.name: {"handlers": ["here"], "level": "INFO"}},
        }
    )
    try:
        logger.info("an order", extra={"order": 7})
    finally:
        logger.handlers.clear()

    line = json.loads(written.getvalue())
    assert (line["level"], line["message"], line["order"]) == ("INFO", "an order", 7)
