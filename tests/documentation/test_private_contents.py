"""What the page on personal data encrypts cannot be read, and its filter hides keys."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from sqlalchemy import text
from sqlalchemy.orm import Session
from tests.waiting import until

from reliable_mq import ReliableMQ
from reliable_mq.telemetry.json_lines import JsonFormatter

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "personal_data.md").read_text()


def program(heading: str) -> str:
    """Return the Python of the page under a heading."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    (found,) = re.findall(r"```python\n(.*?)```", part, re.DOTALL)
    return str(found)


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[ReliableMQ]:
    url = f"sqlite:///{tmp_path}/shop.db"
    made = ReliableMQ("shop", broker=f"embedded:{tmp_path}/broker", database=url)
    made.create_tables()
    with made.database.engine.begin() as connection:
        connection.execute(text("CREATE TABLE payments (id INTEGER)"))
    yield made
    made.close()


def pay(order: dict[str, Any], session: Session) -> None:
    session.execute(text("INSERT INTO payments VALUES (:id)"), {"id": order["id"]})


def test_contents_are_read_with_the_key_only(mq: ReliableMQ, tmp_path: Path) -> None:
    shop: dict[str, Any] = {"SECRET": Fernet.generate_key(), "mq": mq, "pay": pay}
    exec(program("Encrypt the content").replace("...", "pay(order, session)"), shop)
    with mq:
        with mq.transaction() as tx:
            tx.send("orders", shop["seal"]({"id": 7, "name": "Ann Miller"}), key=7)
            tx.send("orders", b"sealed by another key", key=8)

        def found(statement: str) -> list[Any]:
            with mq.database.engine.connect() as connection:
                return list(connection.scalars(text(statement)))

        until(lambda: found("SELECT id FROM payments") == [7])
        until(lambda: found("SELECT reason FROM rmq_escalation") != [])
        assert "no key reads this message" in found("SELECT reason FROM rmq_escalation")[0]
    logs = [each.read_bytes() for each in (tmp_path / "broker" / "commitlog").iterdir()]
    assert not any(b"Miller" in each for each in [*logs, (tmp_path / "shop.db").read_bytes()])


@pytest.mark.parametrize("formatter", [logging.Formatter("%(message)s"), JsonFormatter()])
def test_the_filter_of_the_page_hides_keys_in_text_and_json(
    formatter: logging.Formatter, mq: ReliableMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []

    class Written(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(self.format(record))

    handler = Written()
    handler.setFormatter(formatter)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [handler])
    exec(program("Keep keys out of logs"), {})

    @mq.consumer("orders", group="payments", max_attempts=1)
    def refuse(order: dict[str, int]) -> None:
        raise ValueError("no")

    with mq:
        with mq.transaction() as tx:
            tx.send("orders", {"id": 7}, key="ann@shop.example")
        until(lambda: any("dead" in each for each in written))

    assert not any("ann@shop.example" in each for each in written)
    assert any("…" in each or "\\u2026" in each for each in written)
