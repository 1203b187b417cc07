"""Properties of the servers: a secret comes from a file, not from the command line."""

from pathlib import Path

import pytest

from reliable_mq.access.access_settings import SECRET_PROPERTIES
from reliable_mq.cli.server_properties import read_server_properties
from reliable_mq.errors import ConfigurationError
from reliable_mq.runtime.tls_settings import KEY_PASSWORDS


@pytest.mark.parametrize("name", sorted({*SECRET_PROPERTIES, *KEY_PASSWORDS}))
def test_a_secret_is_refused_on_the_command_line_and_taken_from_a_file(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"{name}=planted\n")

    with pytest.raises(ConfigurationError, match="write it into the file of --config") as refused:
        read_server_properties(None, [f"{name}=planted"])

    assert "planted" not in str(refused.value)
    assert read_server_properties(file, []) == {name: "planted"}


def test_a_word_without_a_value_is_not_repeated_beyond_its_name() -> None:
    with pytest.raises(ConfigurationError, match=r"^--set listenPort: write name=value$"):
        read_server_properties(None, ["listenPort"])


@pytest.mark.parametrize("line", ["this", "listenPort 10911", "brokerName =a\nthis is nonsense"])
def test_a_line_of_a_file_without_a_sign_is_refused(line: str, tmp_path: Path) -> None:
    """It would be a property without a value, or with a wrong one."""
    file = tmp_path / "broker.conf"
    file.write_text(f"# settings\nflushDiskType: SYNC_FLUSH\n{line}\n")

    with pytest.raises(ConfigurationError, match=r"the line of '\w+' has no =: write name="):
        read_server_properties(file, [])


@pytest.mark.parametrize("name", sorted({*SECRET_PROPERTIES, *KEY_PASSWORDS}))
def test_a_secret_that_everybody_can_read_is_told(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(f"{name}=planted\n")

    for mode, told in ((0o640, []), (0o644, [f"everybody on this machine can read {name}: chmod"])):
        file.chmod(mode)
        caplog.clear()
        assert read_server_properties(file, []) == {name: "planted"}
        assert [told[0] in each.getMessage() for each in caplog.records] == [True] * len(told)
        assert "planted" not in caplog.text
