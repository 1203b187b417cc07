"""A rival in plain SQL reconciles the same ledgers by itself, and agrees in every row."""

from pathlib import Path
from typing import Any

import pytest
from tests.reconcile import duckdb_rival
from tests.reconcile.cases import every_case, random_cases
from tests.reconcile.ledgers import GRACE, NOW
from tests.reconcile.plain import PlainReconciliation
from tests.reconcile.raw_ledgers import write_ledgers

Key = tuple[str, str]


def differences(found: dict[Key, str], expected: dict[Key, Any]) -> list[Any]:
    return [
        (key, found.get(key), str(expected.get(key)))
        for key in sorted(found.keys() | expected.keys())
        if found.get(key) != expected.get(key)
    ]


def test_the_rival_finds_every_way_into_a_verdict(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    expected, store = every_case(url, tmp_path / "store")

    folder = write_ledgers(tmp_path / "export", [url], {"": store})

    assert differences(duckdb_rival.verdicts(folder, NOW, GRACE), expected) == []


@pytest.mark.parametrize("seed", [20_261_122])
def test_the_rival_agrees_on_messages_in_any_state(tmp_path: Path, seed: int) -> None:
    """Given messages in random states, also such as no system should get into, when both reconcile
    them, then every message and consumer group has the same verdict from both."""
    url = f"sqlite:///{tmp_path}/shop.db"
    store = random_cases(url, tmp_path / "store", seed, 1_000)

    folder = write_ledgers(tmp_path / "export", [url], {"": store})

    expected = PlainReconciliation(url, store, NOW, GRACE).verdicts()
    assert differences(duckdb_rival.verdicts(folder, NOW, GRACE), expected) == []
