"""A consumer belongs to an application before its start: nobody would call it later."""

from pathlib import Path
from typing import Any

import pytest

from reliable_mq import ReliableMQ
from reliable_mq.errors import UsageError


def test_a_consumer_is_refused_after_the_start_and_taken_after_the_end(tmp_path: Path) -> None:
    shop = ReliableMQ(
        "shop", broker=f"embedded:{tmp_path / 'store'}", database=f"sqlite:///{tmp_path}/shop.db"
    )
    shop.create_tables()

    @shop.consumer("orders", group="payments")
    def pay(order: dict[str, Any]) -> None: ...

    with shop:
        with pytest.raises(UsageError, match="consumer group mail: the consumers of shop were"):

            @shop.consumer("orders", group="mail")
            def early(order: dict[str, Any]) -> None: ...

        assert shop.groups_of("orders") == ("payments",)

    @shop.consumer("orders", group="mail")
    def late(order: dict[str, Any]) -> None: ...

    assert shop.groups_of("orders") == ("mail", "payments")
