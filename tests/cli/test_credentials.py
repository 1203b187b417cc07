"""A credential comes from a file, the environment or a prompt, and goes to no other program."""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.test_secrets import AWAY, leaks, said, set_only, shop

from reliable_mq.cli.credentials import credential_of, variable, without_credentials
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.settings import load_settings

__all__ = ["said", "shop"]  # fixtures


def test_a_credential_comes_from_a_file_or_a_line_of_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "url"
    file.write_text("sqlite:///x.db\n")
    (tmp_path / "empty").touch()
    (tmp_path / "odd").write_bytes(b"\xff")
    (tmp_path / "stdin").write_text("typed\n")

    assert credential_of("plain", "--db") == "plain"
    assert credential_of(f"@{file}", "--db") == "sqlite:///x.db"
    with (tmp_path / "stdin").open() as lines, monkeypatch.context() as patched:
        patched.setattr(sys, "stdin", lines)
        assert credential_of("-", "--db") == "typed"
        with pytest.raises(UsageError, match="--db -: nothing was typed"):
            credential_of("-", "--db")
    for name, fault in (("empty", "is empty"), ("odd", "UTF-8"), ("no", "No such file")):
        with pytest.raises(UsageError, match=fault):
            credential_of(f"@{tmp_path / name}", "--db")


def test_a_folder_of_secrets_stands_for_variables(
    shop: str, tmp_path: Path, said: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given files with the names of variables, then settings and commands read them."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "reliable_mq_database").write_text(f"sqlite:///{tmp_path}/shop.db\n")
    (folder / "RELIABLE_MQ_SECRET_KEY").write_text("s3cret\n")
    set_only(monkeypatch, {"RELIABLE_MQ_SECRETS_DIR": str(folder), "RELIABLE_MQ_ACCESS_KEY": "a"})

    settings = load_settings()
    assert settings.database == f"sqlite:///{tmp_path}/shop.db"
    assert settings.secret_key.get_secret_value() == "s3cret"
    assert variable("RELIABLE_MQ_DATABASE") == settings.database
    assert said("create-tables", shop).startswith("0\n")
    assert "no stub matches" in said("stub", "list"), "without an application, too"
    assert "sets nothing" not in said("stub", "list", "--app", shop)
    monkeypatch.setenv("RELIABLE_MQ_DATABASE", "sqlite:///wins.db")
    assert load_settings().database == "sqlite:///wins.db"
    monkeypatch.setenv("RELIABLE_MQ_SECRETS_DIR", str(folder / "nowhere"))
    with pytest.raises(ConfigurationError, match=r"SECRETS_DIR: .*nowhere is not a folder"):
        load_settings()


def test_other_programs_get_no_variable_with_a_secret() -> None:
    kept = without_credentials({**AWAY, "PATH": "/bin", "RELIABLE_MQ_LOG_LEVEL": "debug"})

    assert not leaks(json.dumps(kept))
    assert kept["PATH"] == "/bin"
    assert kept["RELIABLE_MQ_LOG_LEVEL"] == "debug"
