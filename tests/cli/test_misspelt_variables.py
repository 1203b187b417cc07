"""A variable of ours that sets nothing is told of once, by every command. Others are left alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from reliable_mq.cli.main import BAD_USAGE, run
from reliable_mq.configuration.unknown_variables import (
    _OPTIONS,
    _WORDS,
    OF_COMMANDS,
    TOLD_VARIABLE,
    meant_by,
)
from reliable_mq.consume.handler_types import ConsumerOptions
from reliable_mq.misspelt import _OTHER_WORDS, WORDS_OF_OTHERS
from reliable_mq.settings import Settings, unknown_variables

TABLES = ("--db", "sqlite:///nowhere.db")
SAID = "RELIABLE_MQ_CONCURENCY sets nothing; did you mean the option concurrency of @mq.consumer?"

NEAR = {
    "CONCURENCY": "the option concurrency of @mq.consumer",
    "MAX_RETRIES": "the option max_attempts of @mq.consumer",
    "WORKERS": "the option --processes of reliable-mq run",
    "METRICS_PORT": "the option --metrics-port",
    "DATABASE_URL": "RELIABLE_MQ_DATABASE",
    "DSN": "RELIABLE_MQ_DATABASE",
    "POOL_SIZE": "RELIABLE_MQ_DATABASE_CONNECTIONS",
    "BROKR": "RELIABLE_MQ_BROKER",
    "RESULT_BACKEND": "RELIABLE_MQ_REDIS",
    "TRIES": "the option max_attempts of @mq.consumer",
    "RELAY_LEESE": "RELIABLE_MQ_RELAY_LEASE_SECONDS",
    "RESEND_INTERVAL_MS": "RELIABLE_MQ_RESEND_INTERVAL_SECONDS",
    "HEALTHFILE": "RELIABLE_MQ_HEALTH_FILE",
    "APP_": "RELIABLE_MQ_APP",
}
OF_OTHERS = (
    *("SERVICE_HOST", "SERVICE_PORT", "PORT", "BROKER_SERVICE_HOST", "BROKER_PORT"),
    *("BROKER_SERVICE_PORT_NAMESRV", "BROKER_PORT_9876_TCP", "BROKER_PORT_9876_TCP_ADDR"),
    *("TEST_DATABASE", "E2E_BROKER", "DEV_TEST", "MYSQLD", "SIM", "EVERY_STEP"),
    *("VERSION", "IMAGE", "HOST", "HOME", "ENV", "STAGE", ""),
)


def meant(*names: str) -> dict[str, str]:
    variables = [f"RELIABLE_MQ_{name}" for name in names]
    found = meant_by(variables, Settings.model_fields, Settings.renamed)
    return {name.removeprefix("RELIABLE_MQ_"): what for name, what in found.items()}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RELIABLE_MQ_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def lines_of(capfd: pytest.CaptureFixture[str], *words: str) -> list[str]:
    with pytest.raises(SystemExit):
        run(words)
    return capfd.readouterr().err.splitlines()


def test_a_misspelt_variable_has_the_nearest_setting_or_option() -> None:
    assert meant(*NEAR) == NEAR


def test_a_variable_of_kubernetes_of_tests_or_like_nothing_is_somebody_elses() -> None:
    assert meant(*OF_OTHERS) == {}


def test_no_setting_no_earlier_name_and_no_variable_of_a_command_is_misspelt() -> None:
    names = (*Settings.model_fields, *Settings.renamed, *OF_COMMANDS)

    assert meant(*(name.upper() for name in names)) == {}


def test_each_word_leads_to_something_that_there_is() -> None:
    assert set(_WORDS.values()) <= {*Settings.model_fields, *_OPTIONS, *OF_COMMANDS}
    assert {*WORDS_OF_OTHERS} <= {*_WORDS} & {*_OTHER_WORDS}
    assert not set(_WORDS) & {*Settings.model_fields, *Settings.renamed, *_OPTIONS}
    of_consumers = {name for name, place in _OPTIONS.items() if "@mq.consumer" in place}
    assert of_consumers <= set(get_type_hints(ConsumerOptions))


@pytest.mark.parametrize(
    "typed",
    [
        ("stub", "list", *TABLES),
        ("dlq", "list", *TABLES),
        ("topic", "list", "--broker", "127.0.0.1:1"),
        ("broker", "--store", ""),
        ("schema", "check"),
        ("run", "nowhere:mq"),
        ("nonsense",),
    ],
    ids=" ".join,
)
def test_every_command_warns_in_one_line_and_goes_on(
    typed: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_CONCURENCY", "3")

    said, error = lines_of(capfd, *typed)

    assert said == f"warning: {SAID}"
    assert error.startswith("error: ")
    assert TOLD_VARIABLE not in os.environ


def test_an_application_that_a_command_loads_does_not_warn_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Given a command in a process of its own, since loggers of pytest keep what is logged."""
    (tmp_path / "shop.py").write_text(
        "from reliable_mq import ReliableMQ\n"
        "mq = ReliableMQ('shop', database='sqlite:///shop.db')\n"
    )
    monkeypatch.setenv("RELIABLE_MQ_CONCURENCY", "3")
    words = (sys.executable, "-m", "reliable_mq.cli.entry", "create-tables", "--app", "shop:mq")
    ran = subprocess.run(words, capture_output=True, text=True, check=True)

    assert ran.stderr.splitlines() == [f"warning: {SAID}"]


def test_a_child_of_a_command_does_not_warn_again(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_CONCURENCY", "3")
    monkeypatch.setenv("RELIABLE_MQ_BROKR", "3")
    monkeypatch.setenv(TOLD_VARIABLE, "RELIABLE_MQ_CONCURENCY")  # its parent has

    assert unknown_variables() == {"RELIABLE_MQ_BROKR": "RELIABLE_MQ_BROKER"}
    said, _ = lines_of(capfd, "run", "nowhere:mq")
    assert said == "warning: RELIABLE_MQ_BROKR sets nothing; did you mean RELIABLE_MQ_BROKER?"
    assert os.environ[TOLD_VARIABLE] == "RELIABLE_MQ_CONCURENCY"


@pytest.mark.parametrize("is_typed", [True, False])
def test_a_command_whose_log_is_json_warns_in_json(
    is_typed: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_CONCURENCY", "3")
    monkeypatch.setenv("RELIABLE_MQ_LOG_FORMAT", "text" if is_typed else "json")
    words = ("--log-format=json",) if is_typed else ()

    said, *_ = lines_of(capfd, "run", "nowhere:mq", *words)

    line = json.loads(said)
    assert (line["event"], line["level"], line["message"]) == ("setting_unknown", "WARNING", SAID)
    assert line["variable"] == "RELIABLE_MQ_CONCURENCY"


def test_completion_of_words_warns_of_nothing(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_CONCURENCY", "3")
    monkeypatch.setenv("_RELIABLE_MQ_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "reliable-mq stub li")
    monkeypatch.setenv("COMP_CWORD", "2")

    assert lines_of(capfd) == []


def test_a_command_without_such_a_variable_imports_no_settings() -> None:
    code = (
        "import sys\n"
        "from reliable_mq.cli.misspelt_variables import tell_unknown_variables\n"
        "tell_unknown_variables(['broker'])\n"
        "print([each for each in ('pydantic', 'reliable_mq.settings') if each in sys.modules])"
    )
    environment = {**os.environ, "RELIABLE_MQ_LOG_FORMAT": "json", "RELIABLE_MQ_PORT": "tcp://x:1"}
    ran = subprocess.run(
        (sys.executable, "-c", code), capture_output=True, text=True, check=True, env=environment
    )

    assert ran.stdout == "[]\n"


def test_a_wrong_variable_is_an_error_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_SECRETS_DIR", "nowhere")
    monkeypatch.setenv("RELIABLE_MQ_CONCURENCY", "3")
    with pytest.raises(SystemExit) as ended:
        run(("topic", "list", "--broker", "127.0.0.1:1"))

    assert ended.value.code == BAD_USAGE
    assert capfd.readouterr().err.splitlines()[-1].startswith("error: RELIABLE_MQ_SECRETS_DIR: no")
