"""The file with the addresses of `dev`: who reads it can start `dev` again in that terminal."""

import subprocess
from pathlib import Path

from reliable_mq.cli.dev_environment import MADE, forget_former, write_environment

BROKER, DATABASE = "127.0.0.1:40001", "postgresql+psycopg://postgres@127.0.0.1:40002/dev"
SHOP = {
    "RELIABLE_MQ_BROKER": BROKER,
    "RELIABLE_MQ_DATABASE": DATABASE,
    "RELIABLE_MQ_APP": "shop:mq",
}


def variables_after(path: Path) -> dict[str, str]:
    """Return what a shell has in its environment that has read the file, and nothing else."""
    script = f'. "{path}"; env'
    done = subprocess.run(
        ["sh", "-c", script], env={}, capture_output=True, text=True, check=True, timeout=60
    )
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def test_addresses_of_a_former_dev_are_forgotten_and_those_of_the_user_stay(tmp_path: Path) -> None:
    write_environment(tmp_path / "env", SHOP, made=[BROKER])
    variables = variables_after(tmp_path / "env")
    assert variables.items() >= SHOP.items()

    forget_former(variables)

    assert MADE not in variables
    assert "RELIABLE_MQ_BROKER" not in variables
    assert variables["RELIABLE_MQ_DATABASE"] == DATABASE
    assert variables["RELIABLE_MQ_APP"] == "shop:mq"


def test_an_address_that_the_user_sets_afterwards_is_taken(tmp_path: Path) -> None:
    write_environment(tmp_path / "env", SHOP, made=[BROKER, DATABASE])
    variables = variables_after(tmp_path / "env") | {"RELIABLE_MQ_BROKER": "broker.office:9876"}

    forget_former(variables)

    assert variables["RELIABLE_MQ_BROKER"] == "broker.office:9876"
    assert "RELIABLE_MQ_DATABASE" not in variables


def test_the_file_has_no_address_twice_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.touch(mode=0o644)
    write_environment(path, SHOP, made=[DATABASE])

    assert path.read_text().count(DATABASE) == 1
    assert path.stat().st_mode & 0o777 == 0o600
