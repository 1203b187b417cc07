"""What the import of the client brings along: no library that it does not need itself."""

import json
import subprocess
import sys

import pytest

NOT_OURS = ("pydantic", "sqlalchemy", "typer", "rich", "redis", "tenacity", "numpy", "pyspark")
NOT_THE_CLIENTS = tuple(
    f"reliable_mq.{station}"
    for station in ("app", "cli", "idempotency", "outbox", "reconcile", "resend", "name_server")
)

CODE = """
import json, sys
from reliable_mq import {names}
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize(
    "names", ["Client, AsyncClient, ClientSettings, Subscription, Consumed, Message", "TLS"]
)
def test_importing_the_client_brings_no_foreign_library_and_no_other_station(names: str) -> None:
    command = [sys.executable, "-c", CODE.format(names=names)]

    shown = subprocess.run(command, capture_output=True, text=True, check=True)

    loaded = json.loads(shown.stdout)
    unwanted = [name for name in loaded if name.split(".")[0] in NOT_OURS]
    unwanted += [name for name in loaded if ".".join(name.split(".")[:2]) in NOT_THE_CLIENTS]
    # The disk that a file of offsets is written to is described where the broker needs it, too.
    allowed = {f"reliable_mq.broker_core{rest}" for rest in ("", ".store", ".store.disk")}
    unwanted += [n for n in loaded if n.startswith("reliable_mq.broker") and n not in allowed]
    assert unwanted == []
