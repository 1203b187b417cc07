"""What people read of an application: why, once, in words, with commands that can be pasted."""

import asyncio
import logging
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import prometheus_client
import pytest
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from tests.app.lives import A

from reliable_mq import Message, ReceivedMessage, Reject, ReliableMQ, Retry, trace_context
from reliable_mq.app.loading import load_application, own_traceback
from reliable_mq.client.observing import prometheus
from reliable_mq.client.observing.open_telemetry import OpenTelemetryMiddleware
from reliable_mq.consume.consumer import plan_of
from reliable_mq.database.sql_database import Database
from reliable_mq.database.sql_faults import FaultLog
from reliable_mq.errors import (
    ApplicationBroken,
    ConfigurationError,
    ConnectionLost,
    NotPermitted,
    UsageError,
    error_text,
)
from reliable_mq.escalate.alerts import LogNotifier
from reliable_mq.escalate.escalation import Digest, Escalation, EscalationKind
from reliable_mq.extras import extra_of
from reliable_mq.resend.scheduler import ResendCounts
from reliable_mq.resend.thread_scheduler import SUM_SECONDS_MAX, SumLog
from reliable_mq.telemetry.outages import SAID_AGAIN_SECONDS

ROOT = Path(__file__).parents[2]


def raised(error: Exception, cause: Exception | None = None) -> Retry:
    try:
        raise error from cause
    except Retry as retry:
        return retry


def test_a_retry_says_why_and_from_which_error() -> None:
    timeout = TimeoutError("no answer")
    assert raised(Retry(reason="the bank is busy")).why == "the bank is busy"
    assert raised(Retry(after=5), timeout).why == "TimeoutError: no answer"
    both = raised(Retry(5, "the bank is busy"), timeout)
    assert both.why == "the bank is busy; TimeoutError: no answer"
    assert str(both) == "again after 5 s: the bank is busy"
    assert raised(Retry()).why == "the handler asked for it and gave no reason"


def no_answer() -> None:
    raise TimeoutError("no answer")


def handler() -> None:
    try:
        no_answer()
    except TimeoutError:
        raise Retry(after=1)  # noqa: B904 - people write it so


def test_a_retry_in_an_except_clause_keeps_the_error_that_was_handled() -> None:
    with pytest.raises(Retry) as found:
        handler()
    assert found.value.why == "TimeoutError: no answer"


def test_a_reason_is_a_text() -> None:
    with pytest.raises(UsageError, match="the reason of Retry is 5"):
        Retry(reason=5)  # type: ignore[arg-type]


def test_topic_and_body_may_be_given_by_position() -> None:
    assert Message("orders", b"x", tag="paid") == Message(topic="orders", body=b"x", tag="paid")


def test_a_broker_that_refuses_is_told_in_one_line_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("reliable_mq.database.sql_faults.time.monotonic", lambda: now)
    teller = FaultLog(logging.getLogger("test"), "reading notices")

    for step in (0.0, 1.0, SAID_AGAIN_SECONDS - 2.0, 2.0):
        now += step
        teller.log_fault(NotPermitted(16, "not you"))

    assert len(caplog.records) == 2
    assert all(each.exc_info is None for each in caplog.records)
    assert "NotPermitted" in caplog.messages[0]


def test_a_broker_that_is_away_is_told_by_its_connection_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    FaultLog(logging.getLogger("test"), "reading notices").log_fault(ConnectionLost("no broker"))
    assert caplog.records == []


def test_what_a_scheduler_did_is_told_in_words_and_nothing_is_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = logging.getLogger("test.sums")
    caplog.set_level(logging.INFO, log.name)
    teller = SumLog(log)

    teller.add(ResendCounts(claimed=3, rested=3), 100.0)
    teller.add(ResendCounts(claimed=2, sent=2), 101.0)
    teller.add(ResendCounts(claimed=4, sent=3, failed=1), 101.1)
    teller.add(ResendCounts(claimed=1, confirmed=1), 101.0 + SUM_SECONDS_MAX)

    assert caplog.messages == ["resend: 2 sent", "resend: 3 sent, 1 failed, 1 confirmed"]


def test_what_a_scheduler_does_now_and_then_is_told_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A line that came a minute later was looked for."""
    log = logging.getLogger("test.sums")
    caplog.set_level(logging.INFO, log.name)
    teller = SumLog(log)

    for number, second in enumerate((0.0, 5.0, 20.0, 200.0, 203.0), start=1):
        teller.add(ResendCounts(claimed=1, sent=1), second)
        assert len(caplog.messages) == number


def test_what_a_scheduler_always_does_is_told_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = logging.getLogger("test.sums")
    caplog.set_level(logging.INFO, log.name)
    teller, sent = SumLog(log), 3600

    for second in range(sent):
        teller.add(ResendCounts(claimed=1, sent=1), float(second))

    assert len(caplog.messages) <= 60 + 6
    told = sum(int(each.split()[1]) for each in caplog.messages)
    assert sent - SUM_SECONDS_MAX <= told <= sent


def told(kind: EscalationKind, caplog: pytest.LogCaptureFixture) -> str:
    found = Escalation(
        kind=kind, message_id=A, topic="orders", reason="no", consumer_group="payments"
    )
    LogNotifier(lambda: "--app shop:mq").tell(
        Digest("d", "shop", datetime(2026, 1, 1, tzinfo=UTC), 1, (), (found,))
    )
    return caplog.messages[-1]


def test_hints_of_the_log_can_be_pasted(caplog: pytest.LogCaptureFixture) -> None:
    used_up, dead = told(EscalationKind.USED_UP, caplog), told(EscalationKind.DEAD_LETTER, caplog)
    assert f"`reliable-mq stub show {A} --app shop:mq`" in used_up
    assert f"`reliable-mq stub retry {A} --app shop:mq`" in used_up
    assert f"`reliable-mq dlq retry {A} --group payments --app shop:mq`" in dead
    assert "stub retry" not in dead


def test_a_word_of_a_hint_is_one_word_for_a_shell(caplog: pytest.LogCaptureFixture) -> None:
    """Given a topic that a stranger named, then pasting the hint runs nothing of it."""
    found = Escalation(kind=EscalationKind.BACKLOG, message_id="", topic="$(reboot)", reason="many")
    digest = Digest("d", "shop", datetime(2026, 1, 1, tzinfo=UTC), 1, (), (found,))
    LogNotifier(lambda: "").tell(digest)
    assert "`reliable-mq stub list --status unconfirmed --topic '$(reboot)'`" in caplog.messages[-1]


def test_an_embedded_application_that_sends_and_was_not_started_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mq = ReliableMQ(
        "shop", broker=f"embedded:{tmp_path / 'b'}", database=f"sqlite:///{tmp_path / 'shop.db'}"
    )

    @mq.consumer("orders", group="payments")
    def pay(order: dict[str, int]) -> None: ...

    mq.create_tables()
    try:
        for number in (1, 2):
            with mq.transaction() as tx:
                tx.send("orders", {"id": number})
        told = [each for each in caplog.messages if "is not started" in each]
        assert len(told) == 1
        assert "`with mq:`" in told[0]
    finally:
        mq.close()
    caplog.clear()
    with mq, mq.transaction() as tx:
        tx.send("orders", {"id": 3})
    assert not [each for each in caplog.messages if "is not started" in each]


def test_an_application_knows_how_the_command_line_found_it() -> None:
    assert load_application("examples.shop:mq").found_by == "--app examples.shop:mq"


def test_a_module_that_cannot_be_imported_shows_its_own_frames_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_shop.py").write_text("def f():\n    raise KeyError('no')\n\nf()\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ApplicationBroken, match="'broken_shop' cannot be imported: KeyError") as e:
        load_application("broken_shop:mq")

    shown = own_traceback(e.value.own)
    assert re.findall(r'File "(.*)"', shown) == [str(tmp_path / "broken_shop.py")] * 2
    assert shown.endswith("KeyError: 'no'\n")


def test_frames_between_and_behind_those_of_an_application_are_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a module that imports a broken one, and an error that a library raises."""
    (tmp_path / "outer_shop.py").write_text("import inner_shop\n")
    (tmp_path / "inner_shop.py").write_text("import json\njson.loads('{')\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ApplicationBroken) as e:
        load_application("outer_shop:mq")

    files = re.findall(r'File "(.*)"', own_traceback(e.value.own))
    assert files == [str(tmp_path / "outer_shop.py"), str(tmp_path / "inner_shop.py")]


def test_a_setting_that_is_wrong_in_a_module_needs_no_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from reliable_mq import ReliableMQ\nmq = ReliableMQ('shop', databse='x')\n"
    (tmp_path / "misspelt_shop.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigurationError, match="did you mean database") as found:
        load_application("misspelt_shop:mq")
    assert not isinstance(found.value, ApplicationBroken)


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("psycopg", re.escape("pip install 'reliable-mq[postgres]'")),
        ("another", "this needs the module another: pip install another"),
    ],
)
def test_a_missing_module_names_what_to_install_in_code_too(module: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says) as found, extra_of("this"):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    assert isinstance(found.value, ModuleNotFoundError)


def test_a_database_whose_driver_is_missing_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    mq = ReliableMQ("shop", database="postgresql+psycopg://user@127.0.0.1:1/shop")

    with pytest.raises(ConfigurationError, match=re.escape("reliable-mq[postgres]")):
        _ = mq.database.engine


def test_a_middleware_whose_extra_is_missing_raises_an_import_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prometheus, "_prometheus", None)
    monkeypatch.setattr(trace_context, "otel", None)

    for middleware, extra in (
        (prometheus.PrometheusMiddleware, "prometheus"),
        (OpenTelemetryMiddleware, "otel"),
    ):
        with pytest.raises(ImportError, match=re.escape(f"reliable-mq[{extra}]")) as found:
            middleware()
        assert isinstance(found.value, ConfigurationError)


def test_the_prometheus_example_can_be_imported_by_any_number_of_processes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Given two commands that import it, then neither finds a port taken."""
    page = (ROOT / "docs" / "reference" / "observation.md").read_text()
    block = page.split("```python\n", 1)[1].split("```", 1)[0]
    assert "start_http_server" not in block
    monkeypatch.setattr(prometheus_client, "REGISTRY", prometheus_client.CollectorRegistry())
    made: dict[str, Any] = {}
    exec(block, made)
    assert isinstance(made["mq"], ReliableMQ)


def test_a_reject_keeps_its_reason() -> None:
    assert Reject("no such customer").reason == "no such customer"


def test_an_error_of_the_database_is_told_without_statement_parameters_and_link() -> None:
    cause = ValueError("violates foreign key constraint")
    error = IntegrityError("INSERT INTO t VALUES (:card)", {"card": "4111"}, cause)

    assert error_text(error) == "ValueError: violates foreign key constraint"


def test_a_session_that_may_be_none_is_given_all_the_same() -> None:
    def pay(
        order: dict[str, int] | None,
        session: Session | None = None,
        message: ReceivedMessage | None = None,
    ) -> None: ...

    plan = plan_of(pay)
    assert (plan.payload, plan.session, plan.message) == ("order", "session", "message")
    assert plan.payload_type == dict[str, int] | None


@pytest.mark.parametrize(("written", "meant"), [("retries", "max_attempts"), ("tpic", "topic")])
def test_a_word_of_another_library_is_answered_with_ours(written: str, meant: str) -> None:
    mq = ReliableMQ("shop", database="sqlite:///nowhere.db")

    with pytest.raises(UsageError, match=f"has no '{written}'; did you mean {meant}\\?"):
        mq.consumer("orders", group="payments", **{written: 3})  # type: ignore[call-overload]


def test_a_database_with_its_own_words_for_commands_changes_no_other_one(tmp_path: Path) -> None:
    """Given a database as that of Django, then a second one in this process with the same names of
    tables, has the usual words."""
    url = f"sqlite:///{tmp_path / 'empty.db'}"
    for words, says in ((str.upper, "CALL MQ.CREATE_TABLES"), (str, "call mq.create_tables")):
        database = Database(url, prefix="rmq_", connections=1, command_words=words)
        with pytest.raises(ConfigurationError, match=says):
            database.check_tables()
        database.close()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("headers", "properties"),
        ("countdown", "delay"),
        ("eta", "deliver_at"),
        ("partition_key", "ordering_key"),
        ("groups", "required_groups"),
    ],
)
def test_a_send_with_a_word_of_another_library_is_answered_with_ours(
    written: str, meant: str, tmp_path: Path
) -> None:
    mq = ReliableMQ("shop", database=f"sqlite:///{tmp_path / 'shop.db'}")
    mq.create_tables()
    option: Any = {written: 3}

    with (
        pytest.raises(UsageError, match=f"no option {written}; did you mean {meant}\\?"),
        mq.transaction() as tx,
    ):
        tx.send("orders", {}, **option)
    mq.close()


@pytest.mark.parametrize(
    ("written", "meant"), [("db", "database"), ("broker_url", "broker"), ("valkey", "redis")]
)
def test_a_setting_of_another_library_is_answered_with_ours(written: str, meant: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no setting {written}; did you mean {meant}\\?"):
        ReliableMQ("shop", **{written: "x"})  # type: ignore[arg-type]


def test_a_run_within_an_event_loop_says_what_to_call() -> None:
    mq = ReliableMQ("shop", broker="127.0.0.1:1", database="sqlite:///nowhere.db")

    async def serve() -> None:
        mq.run()

    with pytest.raises(UsageError, match=r"would block this event loop: call start\(\)"):
        asyncio.run(serve())
