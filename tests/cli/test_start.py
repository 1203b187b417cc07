"""A start imports what it needs, and nothing that takes long beside it; no clock is read here.

`python -m bench.start_cost` measures the times.
"""

import ast
import gc
import subprocess
import sys
from pathlib import Path

import pytest

from reliable_mq.cli import entry, main

SERVER, CLIENT, APP = "broker_core.requests.handlers", "client.asyncio_client", "app.application"
HEAVY = (
    *("alembic", "asyncio", "jinja2", "numpy", "opentelemetry.sdk", "pandas", "prometheus_client"),
    *("psycopg", "pyarrow", "pydantic", "pyspark", "redis", "rich", "rich.progress", "sqlalchemy"),
    *("sqlalchemy.dialects.mysql", "uvloop", "watchfiles"),
    *(f"reliable_mq.{each}" for each in (SERVER, CLIENT, APP, "reconcile.judgement.verdict")),
)
"""What takes five milliseconds or more."""

LOOP = {"asyncio", "uvloop"}
IN_CLUSTER = LOOP | {"pydantic", f"reliable_mq.{CLIENT}"}
IN_DATABASE = IN_CLUSTER | {"sqlalchemy", f"reliable_mq.{APP}"}
NEEDED: dict[str, set[str]] = {
    "--help": set(),
    "init": set(),
    "broker": LOOP | {f"reliable_mq.{SERVER}"},
    "namesrv": LOOP,
    "audit": {"asyncio", "pydantic"},
    **dict.fromkeys(("topic", "group", "access", "message"), IN_CLUSTER),
    **dict.fromkeys(("run", "resend"), IN_DATABASE),
    **dict.fromkeys(("stub", "dlq", "doctor"), IN_DATABASE),
}
"""What of `HEAVY` the import of each verb brings."""

SHOP = """
from reliable_mq import ReliableMQ

mq = ReliableMQ("shop", database="sqlite:///shop.db", redis="{redis}")
"""


COMMAND = """
from reliable_mq.cli import main
try:
    main.run({} + ["--app", "shop:mq"])
except SystemExit as ended:
    assert not ended.code
"""


def imported_by(code: str, folder: Path | None = None) -> set[str]:
    """Return what of `HEAVY` a program of its own has imported in the end."""
    shown = subprocess.run(
        [
            *(sys.executable, "-c"),
            f"{code}\nimport sys\nprint([each for each in {HEAVY} if each in sys.modules])",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    return set(ast.literal_eval(shown.stdout.splitlines()[-1]))


@pytest.mark.parametrize("verb", NEEDED)
def test_a_command_imports_what_it_needs(verb: str) -> None:
    code = f"from reliable_mq.cli.main import build_app\nbuild_app([{verb!r}])"

    assert imported_by(code) == NEEDED[verb]


def test_a_command_that_reads_tables_does_not_import_redis(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(redis="redis://u:p@127.0.0.1:6379/0"))
    imported_by(COMMAND.format(["create-tables"]), tmp_path)

    assert imported_by(COMMAND.format(["stub", "list"]), tmp_path) == NEEDED["stub"]


def test_an_option_of_redis_is_checked_by_redis_py(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(redis="redis://127.0.0.1/?socket_timeout=1"))

    assert "redis" in imported_by("import shop", tmp_path)


def test_what_is_imported_is_no_garbage_to_look_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector rests until the verb is imported, and works while it runs."""
    seen = []

    def run(*, imported: object) -> None:
        seen.append(gc.isenabled())
        assert callable(imported)
        imported()
        seen.append(gc.isenabled())

    monkeypatch.setattr(main, "run", run)
    before = gc.get_freeze_count()
    try:
        entry.run()
        assert seen == [False, True]
        assert gc.get_freeze_count() > before
    finally:
        gc.enable()
