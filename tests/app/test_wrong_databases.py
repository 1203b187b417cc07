"""A database that cannot be is refused when its application is made, or at the first use."""

from pathlib import Path
from typing import Any

import pytest

from reliable_mq import ReliableMQ
from reliable_mq.errors import ConfigurationError


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"database": "postgres//u:pa55@x"}, "^database= is not an SQLAlchemy URL: write one like"),
        ({"database": "oracle://u:pa55@h/x"}, "^database 'oracle' is not supported"),
        ({"database": "sqlite://"}, "^database: an SQLite database in memory is lost"),
        ({"databases": {"billing": "oracle://x"}}, "^databases: 'billing': database 'oracle' is"),
    ],
)
def test_a_wrong_database_is_refused_when_the_application_is_made(
    given: dict[str, Any], says: str
) -> None:
    """Not at the first order: a deployment must not go well with it."""
    with pytest.raises(ConfigurationError, match=says) as caught:
        ReliableMQ("shop", **given)

    assert "pa55" not in str(caught.value)
    ReliableMQ("shop")  # a database is needed at its first use


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    mq = ReliableMQ("shop", database=f"sqlite:///{tmp_path}")

    with pytest.raises(ConfigurationError, match=f"{tmp_path} is a folder: name a file in it"):
        mq.create_tables()
