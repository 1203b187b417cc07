"""A console that is killed in the middle of bulk work: nothing is done twice, the rest is left."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from sqlalchemy import func, select
from tests.console.doing_steps import ended, look, start, state_of
from tests.console.planted_rows import insert_rows
from tests.console.test_doing import parked, states
from tests.waiting import until

from reliable_mq import ReliableMQ

pytestmark = pytest.mark.processes
ROWS = 60


@contextmanager
def console_of(mq: ReliableMQ) -> Iterator[tuple[subprocess.Popen[str], httpx2.Client]]:
    """Run `reliable-mq console` for a database; give the process and a browser."""
    url = mq.database.url.render_as_string(hide_password=False)
    command = [sys.executable, "-m", "reliable_mq.cli.main", "console", "--db", url, "--port", "0"]
    known = {"RELIABLE_MQ_BROKER": "127.0.0.1:1", "RELIABLE_MQ_CONSOLE_SECRET": "s" * 40}
    with subprocess.Popen(
        command, env={**os.environ, **known}, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready console=")
            with httpx2.Client(base_url=line.split("=")[1].strip(), timeout=60) as client:
                yield process, client
        finally:
            process.kill()


def changes(mq: ReliableMQ) -> list[int]:
    """Return how many entries of the audit say of each stub that it was changed."""
    entry = mq.database.audit.c
    counted = select(func.count()).where(entry.changed == 1).group_by(entry.message_id)
    with mq.database.engine.connect() as connection:
        return list(connection.execute(counted).scalars())


def test_work_of_a_killed_console_can_be_begun_again_and_nothing_is_done_twice(
    mq: ReliableMQ,
) -> None:
    insert_rows(mq.database, "message_stub", *(parked(number) for number in range(ROWS)))
    with console_of(mq) as (process, client):
        preview = look(client, "stub-retry", query={"escalated": "yes"})
        place = start(client, preview, rate="10").headers["location"]
        until(lambda: state_of(client, place)["counts"]["done"] >= 10)
        process.kill()
        process.wait()
        session = dict(client.cookies)
    done = len(changes(mq))
    assert 10 <= done < ROWS
    assert sum(not sends for _, sends in states(mq).values()) == done  # whole parts only
    with console_of(mq) as (_, client):
        client.cookies.update(session)
        page = client.get(place)
        assert page.status_code == 404
        assert f"/audit?work={place.rpartition('/')[2]}" in page.text
        counts = ended(client, start(client, preview))["counts"]
    assert counts == {"done": ROWS - done, "changed since the preview": done, "refused": 0}
    assert changes(mq) == [1] * ROWS
    assert set(states(mq).values()) == {(0, 0)}
