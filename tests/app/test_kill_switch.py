"""A life that ends in the middle of a statement leaves no lock, whatever still holds its cursor."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from tests.app.kill_switch import Killed, KillSwitch

from reliable_mq.database.sql_transactions import make_sqlite_durable


def _write_and_read(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO effects VALUES (1)"))
        connection.execute(text("SELECT 1 FROM effects"))


def test_a_dead_life_frees_its_file_of_sqlite_while_its_cursor_lives(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'one.db'}"
    dying, switch = create_engine(url), KillSwitch()
    make_sqlite_durable(dying)
    with dying.begin() as connection:
        connection.execute(text("CREATE TABLE effects (id INTEGER)"))
    switch.watch(dying)
    cursors: list[Any] = []  # as a traceback keeps them, until garbage is collected
    event.listen(dying, "after_cursor_execute", lambda _, cursor, *__: cursors.append(cursor))
    switch.at = 5  # after the SELECT, of which no row was read

    with pytest.raises(Killed, match="after SELECT 1"):
        _write_and_read(dying)
    dying.dispose()

    other = create_engine(url, connect_args={"timeout": 0.0})
    with other.begin() as connection:
        assert connection.execute(text("INSERT INTO effects VALUES (2) RETURNING id")).all()
    with other.connect() as connection:
        assert connection.execute(text("SELECT id FROM effects")).scalars().all() == [2]
    other.dispose()
