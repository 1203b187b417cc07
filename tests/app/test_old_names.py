"""Settings whose names had no unit go on working by these names, with one warning each."""

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError
from pydantic_settings import (
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from reliable_mq import ClientSettings, ReliableMQ
from reliable_mq.client.configured import configured, of_environment
from reliable_mq.errors import ConfigurationError
from reliable_mq.old_names import CLIENT_SETTINGS, SETTINGS
from reliable_mq.settings import Settings

ROOT = Path(__file__).parent.parent.parent
OLD = "relay_lease"
NEW = "relay_lease_seconds"
USUAL = 5.0
SAYS = f"{OLD} is called {NEW} now"
WINDOW_SAYS = (
    "duplicate_window must be longer than claim_lease_seconds; duplicate_window is called"
    " duplicate_window_seconds now"
)
ANY_SETTINGS: Any = Settings  # type checkers see the fields of today only
ANY_CLIENT: Any = ClientSettings
ANY_APPLICATION: Any = ReliableMQ


@pytest.fixture(autouse=True)
def only_variables_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIABLE_MQ_CLIENT", raising=False)


class Sources:
    """Where settings come from: each writes what is given, and returns what was read."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch

    def of_application(self, given: Mapping[str, float]) -> Any:
        return ANY_APPLICATION("shop", **given).settings

    def of_keywords(self, given: Mapping[str, float]) -> Any:
        return ANY_SETTINGS(**given)

    def of_a_dictionary(self, given: Mapping[str, float]) -> Any:
        return Settings.model_validate(given)

    def of_json(self, given: Mapping[str, float]) -> Any:
        return Settings.model_validate_json(msgspec.json.encode(given))

    def of_a_copy(self, given: Mapping[str, float]) -> Any:
        return Settings().model_copy(update=given)

    def of_unchecked_values(self, given: Mapping[str, float]) -> Any:
        return ANY_SETTINGS.model_construct(**given)

    def of_variables(self, given: Mapping[str, float]) -> Any:
        for name, value in given.items():
            self._monkeypatch.setenv(f"RELIABLE_MQ_{name.upper()}", str(value))
        return ANY_APPLICATION("shop").settings

    def of_lower_case_variables(self, given: Mapping[str, float]) -> Any:
        for name, value in given.items():
            self._monkeypatch.setenv(f"reliable_mq_{name}", str(value))
        return Settings()

    def of_an_env_file(self, given: Mapping[str, float]) -> Any:
        path = self._folder / ".env"
        path.write_text("".join(f"RELIABLE_MQ_{name.upper()}={given[name]}\n" for name in given))

        class FromFile(Settings):
            model_config = SettingsConfigDict(env_file=path)

        return ANY_APPLICATION("shop", settings=FromFile()).settings

    def of_secrets(self, given: Mapping[str, float]) -> Any:
        folder = self._folder / "secrets"
        folder.mkdir()
        for name, value in given.items():
            (folder / f"RELIABLE_MQ_{name.upper()}").write_text(f"{value}\n")
        return ANY_SETTINGS(_secrets_dir=folder)

    def of_a_toml_file(self, given: Mapping[str, float]) -> Any:
        path = self._folder / "settings.toml"
        path.write_text("".join(f"{name} = {value}\n" for name, value in given.items()))

        class FromToml(Settings):
            model_config = SettingsConfigDict(toml_file=path)

            @classmethod
            def settings_customise_sources(
                cls, settings_cls: Any, *given: Any, **named: Any
            ) -> tuple[PydanticBaseSettingsSource, ...]:
                code, variables = named["init_settings"], named["env_settings"]
                return code, variables, TomlConfigSettingsSource(settings_cls)

        return FromToml()


CODE = [
    *(Sources.of_application, Sources.of_keywords, Sources.of_a_dictionary, Sources.of_json),
    *(Sources.of_a_copy, Sources.of_unchecked_values),
]
OPERATORS = [
    *(Sources.of_variables, Sources.of_lower_case_variables, Sources.of_an_env_file),
    *(Sources.of_secrets, Sources.of_a_toml_file),
]
Read = Callable[[Sources, Mapping[str, float]], Any]
every_source = pytest.mark.parametrize("read", CODE + OPERATORS, ids=lambda read: read.__name__)


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    return Sources(tmp_path, monkeypatch)


@pytest.fixture
def told() -> Iterator[list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield found


def texts(told: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in told]


@every_source
def test_an_old_name_works_and_is_told_of_once(
    read: Read, sources: Sources, told: list[warnings.WarningMessage]
) -> None:
    settings = read(sources, {OLD: 7.0})

    assert getattr(settings, NEW) == 7.0
    (warning,) = told
    assert str(warning.message).lower().replace("reliable_mq_", "") == SAYS
    assert warning.category is (DeprecationWarning if read in CODE else FutureWarning)
    if read in CODE:
        assert warning.filename == __file__


@every_source
def test_a_new_name_is_not_told_of(
    read: Read, sources: Sources, told: list[warnings.WarningMessage]
) -> None:
    settings = read(sources, {NEW: 7.0})

    assert getattr(settings, NEW) == 7.0
    assert texts(told) == []


@every_source
def test_both_names_in_one_source_are_an_error_that_has_both(read: Read, sources: Sources) -> None:
    with pytest.raises(ConfigurationError, match=f"(?i){OLD} and (reliable_mq_)?{NEW} are one"):
        read(sources, {OLD: 7.0, NEW: 7.0})


@pytest.mark.parametrize("old", SETTINGS)
def test_every_setting_is_read_by_its_old_name_from_code_and_from_variables(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = getattr(Settings(), SETTINGS[old])
    other = (*value, 9000.0) if isinstance(value, tuple) else value + 1
    with pytest.warns(DeprecationWarning, match=f"^{old} is called {SETTINGS[old]} now$"):
        of_code = ANY_SETTINGS(**{old: other})

    monkeypatch.setenv(f"RELIABLE_MQ_{old.upper()}", msgspec.json.encode(other).decode())
    with pytest.warns(
        FutureWarning, match=f"{old.upper()} is called .*{SETTINGS[old].upper()} now"
    ):
        of_variables = Settings()

    assert of_code == of_variables
    assert getattr(of_code, SETTINGS[old]) == other


@pytest.mark.parametrize("old", CLIENT_SETTINGS)
def test_every_setting_of_a_client_is_given_and_read_by_its_old_name(old: str) -> None:
    new = CLIENT_SETTINGS[old]
    value = getattr(ClientSettings(), new)
    other = value + 1 if isinstance(value, float) else value // 2
    with pytest.warns(DeprecationWarning, match=f"^{old} is called {new} now$") as given:
        settings = ANY_CLIENT(**{old: other})
    with pytest.warns(DeprecationWarning, match=f"ClientSettings.{old} is called {new}") as read:
        assert getattr(settings, old) == other

    assert settings == ANY_CLIENT(**{new: other})
    assert [each.filename for each in (*given, *read)] == [__file__, __file__]


def test_a_nearer_source_wins_whichever_names_the_two_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: list[warnings.WarningMessage]
) -> None:
    path = tmp_path / ".env"
    path.write_text("RELIABLE_MQ_RELAY_LEASE=3\nRELIABLE_MQ_CLAIM_LEASE=4\n")
    monkeypatch.setenv("RELIABLE_MQ_RELAY_LEASE_SECONDS", "8")

    assert ANY_APPLICATION("shop", **{OLD: 2.0}).settings.relay_lease_seconds == 2.0
    assert ANY_APPLICATION("shop").settings.relay_lease_seconds == 8.0
    settings = ANY_SETTINGS(_env_file=path)
    assert (settings.relay_lease_seconds, settings.claim_lease_seconds) == (8.0, 4.0)

    monkeypatch.delenv("RELIABLE_MQ_RELAY_LEASE_SECONDS")
    monkeypatch.setenv("RELIABLE_MQ_RELAY_LEASE", "9")
    assert ANY_APPLICATION("shop", **{NEW: 2.0}).settings.relay_lease_seconds == 2.0
    assert (
        ANY_APPLICATION("shop", settings=Settings(), **{OLD: 6.0}).settings.relay_lease_seconds
        == 6.0
    )
    assert ANY_APPLICATION("shop", **{OLD: None}).settings.relay_lease_seconds == 9.0


def test_the_settings_of_a_client_are_named_anew_within_each_source(
    monkeypatch: pytest.MonkeyPatch, told: list[warnings.WarningMessage]
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_CLIENT", '{"request_timeout": 5, "pull_size": 1024}')

    mq = ANY_APPLICATION("shop", client={"request_timeout_seconds": 7})

    assert mq.settings.client == {"request_timeout_seconds": 7, "pull_bytes": 1024}
    client = configured(mq.settings)
    assert (client.request_timeout_seconds, client.pull_bytes) == (7, 1024)
    assert texts(told) == [
        "RELIABLE_MQ_CLIENT: request_timeout is called request_timeout_seconds now",
        "RELIABLE_MQ_CLIENT: pull_size is called pull_bytes now",
    ]
    assert of_environment().request_timeout_seconds == 5


def test_both_names_of_a_clients_setting_are_an_error_that_has_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = {"pull_size": 1, "pull_bytes": 1}
    says = "pull_size and pull_bytes are one setting, and both are given: keep pull_bytes"
    with pytest.raises(ConfigurationError, match=f"^{says}"):
        ANY_CLIENT(**both)
    with pytest.raises(ConfigurationError, match=f"^client: {says}"):
        ANY_APPLICATION("shop", client=both)
    monkeypatch.setenv("RELIABLE_MQ_CLIENT", msgspec.json.encode(both).decode())
    with pytest.raises(ConfigurationError, match=f"^RELIABLE_MQ_CLIENT: {says}"):
        ANY_APPLICATION("shop")


def test_an_attribute_is_read_by_its_old_name_with_a_warning_at_the_readers_line() -> None:
    settings: Any = ANY_APPLICATION("shop", relay_lease_seconds=7.0).settings
    with pytest.warns(DeprecationWarning, match=f"^Settings.{SAYS}$") as told:
        assert settings.relay_lease == 7.0

    assert [each.filename for each in told] == [__file__]
    with pytest.raises(AttributeError, match="relay_leese"):
        settings.relay_leese  # noqa: B018
    with pytest.raises(AttributeError, match="request_timout"):
        ANY_CLIENT().request_timout  # noqa: B018


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({OLD: -1}, f"setting {OLD}: it must be greater than 0; {SAYS}"),
        ({OLD: 1e12}, f"{OLD}=1000000000000.0: at most 3.2e+09 seconds, a hundred years; {SAYS}"),
        ({"duplicate_window": 1}, WINDOW_SAYS),
    ],
)
@pytest.mark.filterwarnings("ignore:.* is called .* now")
def test_an_error_names_what_was_written_and_what_it_is_called_now(
    given: dict[str, float], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigurationError, match=f"^{re.escape(says)}$"):
        ANY_APPLICATION("shop", **given)

    ((name, value),) = given.items()
    monkeypatch.setenv(f"RELIABLE_MQ_{name.upper()}", str(value))
    told = says.replace(f"setting {OLD}", f"RELIABLE_MQ_{OLD.upper()}")
    with pytest.raises(ConfigurationError, match=f"^{re.escape(told)}$"):
        ANY_APPLICATION("shop")


@pytest.mark.filterwarnings("ignore:.* is called .* now")
def test_an_error_names_what_the_nearest_source_has_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_RELAY_LEASE", "3")
    with pytest.raises(ConfigurationError, match=f"^setting {NEW}: [^;]*$"):
        ANY_APPLICATION("shop", **{NEW: -1})
    with pytest.raises(ValidationError) as refused:
        ANY_SETTINGS(relay_lease=-1, claim_lease_seconds=-1)
    assert [each["loc"] for each in refused.value.errors()] == [(OLD,), ("claim_lease_seconds",)]
    assert [each["type"] for each in refused.value.errors()] == ["greater_than", "greater_than"]
    with pytest.raises(ConfigurationError, match=r"^request_timeout is -1: .*_seconds now$"):
        ANY_CLIENT(request_timeout=-1)


@pytest.mark.filterwarnings("ignore:.* is called .* now")
def test_a_variable_that_is_no_json_is_told_of_by_the_name_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_RESEND_WAITS", "1,5")
    says = r"_RESEND_WAITS \(now RELIABLE_MQ_RESEND_WAITS_SECONDS\) is not JSON: write it like"
    with pytest.raises(ConfigurationError, match=says):
        ANY_APPLICATION("shop")


def test_an_error_shows_no_value_of_a_setting_that_is_refused() -> None:
    with (
        pytest.warns(DeprecationWarning, match=SAYS),
        pytest.raises(ValidationError) as refused,
    ):
        ANY_SETTINGS(relay_lease=5, database=["redis://u:s3cret@h"])
    assert "s3cret" not in str(refused.value)


def test_an_unknown_name_is_told_of_as_before(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    says = "no setting resend_tld_after; did you mean resend_notify_after_seconds?"
    with pytest.raises(ConfigurationError, match=re.escape(says)):
        ANY_APPLICATION("shop", resend_tld_after=1)
    with pytest.raises(TypeError, match="request_timout"):
        ANY_CLIENT(request_timout=3)
    with pytest.raises(ValidationError, match="relay_leese"):
        ANY_SETTINGS(relay_leese=3)

    monkeypatch.setenv("RELIABLE_MQ_RELAY_LEESE", "3")
    monkeypatch.setenv("RELIABLE_MQ_RELAY_LEASE", "3")
    with pytest.warns(FutureWarning, match=NEW.upper()):
        ANY_APPLICATION("shop")
    (line,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    meant = "did you mean RELIABLE_MQ_RELAY_LEASE_SECONDS?"
    assert line.getMessage() == f"RELIABLE_MQ_RELAY_LEESE sets nothing; {meant}"


def test_a_subclass_with_a_prefix_of_its_own_is_told_of_its_own_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Billing(Settings):
        model_config = SettingsConfigDict(env_prefix="BILLING_")

    monkeypatch.setenv("BILLING_RELAY_LEASE", "7")
    says = "^BILLING_RELAY_LEASE is called BILLING_RELAY_LEASE_SECONDS now$"
    with pytest.warns(FutureWarning, match=says):
        assert Billing().relay_lease_seconds == 7.0


def test_python_shows_an_operator_each_old_name_once_in_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RELIABLE_MQ_RELAY_LEASE", "7")
    with warnings.catch_warnings(record=True) as told:
        warnings.resetwarnings()  # Python's own, where nobody has set others
        for _ in range(3):
            ANY_APPLICATION("shop")
        Settings()
    assert len(told) == 1
