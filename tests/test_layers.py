"""The arrows of ARCHITECTURE.md: who may import whom, and who may touch the world."""

import ast
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "reliable_mq"

WORLD = frozenset(
    {"asyncio", "concurrent", "os", "random", "selectors", "signal"}
    | {"socket", "subprocess", "threading", "time", "uvloop"}
)
WORLD_STATIONS = frozenset({"runtime", "cli", "console", "contrib", "testing"})
WORLD_PREFIXES = (
    *("asyncio_", "thread_", "redis_", "sql_", "spark_"),
    *("file_", "http_", "smtp_"),
)

VALUES = frozenset(
    {
        *("command_words", "decodable", "host_and_port", "line_limit", "message", "misspelt"),
        *("decorated", "error_texts", "errors", "limits", "plain_text"),
    }
    | {
        "message_checks",
        "message_digest",
        "names",
        "old_names",
        "refusals",
        "sensitive",
        "settings",
        "signature",
    }
    | {"setting_options", "telemetry", "topic", "trace_context", "transitions", "watched_time"}
)
# Station -> what it may import beside itself. A dotted name allows that one module only.
ARROWS: dict[str, frozenset[str]] = {
    "telemetry": frozenset({"error_texts", "errors", "extras", "line_limit", "plain_text"}),
    "wire": frozenset(
        {
            *("decodable", "host_and_port", "line_limit", "message", "misspelt"),
            *("errors", "limits", "plain_text", "telemetry"),
        }
    ),
    "name_server": VALUES | {"wire"},
    "access": VALUES | {"wire"},
    "broker_core": VALUES | {"access", "failover", "replication", "wire"},
    "replication": VALUES | {"wire"},
    "failover": VALUES | {"replication", "wire"},
    "client": VALUES | {"extras", "outcomes", "wire"},
    "database": VALUES | {"extras"},
    "outbox": VALUES | {"database"},
    "idempotency": VALUES
    | {"database", "client"}
    | {"outbox.calls_apart", "outbox.async_transaction", "outbox.sql_transaction"},
    "confirm": VALUES | {"database", "outbox", "idempotency"},
    "escalate": VALUES | {"extras", "wire", "database", "client", "outbox", "confirm"},
    "consume": VALUES
    | {"database", "client", "outbox", "idempotency", "confirm", "escalate", "outcomes"},
    "periodic": VALUES | {"extras", "database", "outbox"},
    "resend": VALUES | {"database", "client", "outbox", "confirm", "escalate"},
    "retention": VALUES | {"database", "idempotency", "escalate"},
    "reconcile": VALUES | {"extras", "wire", "database"},
    "contract": VALUES
    | {"consume.consumer", "outbox.payload", "outbox.schema", "periodic.declaration"},
    "measuring": VALUES | {"database", "escalate"},
    "migrations": VALUES | {"database"},
    "doctor": VALUES
    | {"client", "database", "outbox"}
    | {"idempotency.redis_servers"}
    | {"periodic.declaration"}
    | {"resend.topic_gate", "resend.sql_topics", "retention.windows"},
    "gateway": VALUES | {"extras", "wire", "broker_core.names", "client.connecting.routes"},
    "runtime": VALUES
    | {"access", "wire", "name_server", "broker_core", "extras", "failover", "gateway"}
    | {"replication"},
}
# The shells of a station may import these too.
SHELL_ARROWS: dict[str, frozenset[str]] = {
    "client": frozenset({"runtime"}),
    "database": frozenset({"runtime"}),
    **dict.fromkeys(
        ("idempotency", "consume", "escalate", "periodic", "resend", "retention"),
        frozenset({"runtime"}),
    ),
    # The client behind the link: half messages and the direct producer call its verbs.
    "outbox": frozenset({"runtime", "client.asyncio_client"}),
    # What a repair changes and tells, it changes and tells as a person's retry does.
    # A cluster that is closed knows a run by the same account and certificates as any client.
    "reconcile": frozenset({"runtime.blocking_link", "client.configured"})
    | {f"client.connecting.{name}" for name in ("file_tls", "security", "signature")}
    | {"outbox.sql_attempt_restarts", "outbox.stub"}
    | {"escalate.escalation", "escalate.sql_audit", "escalate.sql_escalations"},
}
# The faces, and what tests stand on.
FREE = frozenset({"app", "cli", "console", "contrib", "testing", "__init__"})


@cache
def imported_names(source: str, package: str) -> frozenset[str]:
    """Return the dotted names that a module of `package` imports, at any depth of its code."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")
            origin = ".".join(above[: len(above) + 1 - node.level]) if node.level else ""
            prefix = ".".join(part for part in (origin, node.module) if part)
            names |= {f"{prefix}.{alias.name}" for alias in node.names}
    return frozenset(names)


def violations(path: str, source: str) -> list[str]:
    """Return what a module at `path` (relative to the package) imports against the rules."""
    parts = Path(path).with_suffix("").parts
    station, name = parts[0], parts[-1]
    is_shell = name.startswith(WORLD_PREFIXES)
    found = []
    for imported in sorted(imported_names(source, package_of(SOURCE / path))):
        top, _, rest = imported.partition(".")
        if top in WORLD and station not in WORLD_STATIONS and not is_shell:
            found.append(f"{path} touches the world: {top}")
        if top == "reliable_mq" and station in ARROWS:
            target = rest.split(".")[0]
            allowed = ARROWS[station] | (
                SHELL_ARROWS.get(station, frozenset()) if is_shell else frozenset()
            )
            fits = any(rest == arrow or rest.startswith(f"{arrow}.") for arrow in allowed)
            if target != station and not fits:
                found.append(f"{path} may not import {imported}")
    return found


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    return ".".join(("reliable_mq", *path.relative_to(SOURCE).parts[:-1]))


def test_every_station_has_its_arrows_written_down() -> None:
    stations = {path.name for path in SOURCE.iterdir() if (path / "__init__.py").exists()}

    assert stations - FREE == ARROWS.keys() & stations


def test_nothing_but_itself_imports_contrib() -> None:
    found = [
        f"{path.relative_to(SOURCE)}: {imported}"
        for path in modules()
        if "contrib" not in path.parts
        for imported in imported_names(path.read_text(), package_of(path))
        if imported.startswith("reliable_mq.contrib")
    ]

    assert found == []


def test_nothing_but_its_command_and_contrib_imports_the_console() -> None:
    command = {SOURCE / "cli" / name for name in ("console.py", "console_oidc.py")}
    found = [
        f"{path.relative_to(SOURCE)}: {imported}"
        for path in modules()
        if not {"console", "contrib"} & {*path.parts} and path not in command
        for imported in imported_names(path.read_text(), package_of(path))
        if imported.startswith("reliable_mq.console")
    ]

    assert found == []


def test_no_module_imports_against_the_arrows_or_touches_the_world() -> None:
    found = [
        violation
        for path in modules()
        for violation in violations(str(path.relative_to(SOURCE)), path.read_text())
    ]

    assert found == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("wire/frame.py", "import time"),
        ("wire/frame.py", "from os import path"),
        ("wire/frame.py", "def late():\n    import asyncio.events"),
        ("wire/frame.py", "from reliable_mq.client import producer"),
        ("wire/frame.py", "from ..broker_core import dispatch"),
        ("message.py", "import random"),
        ("broker_core/store/segment.py", "import os"),
        ("broker_core/dispatch.py", "from reliable_mq.idempotency.claim import Claim"),
        ("client/sending/producer.py", "from reliable_mq.runtime import connection"),
        ("database/sql_schema.py", "from reliable_mq.outbox.stub import Stub"),
        ("reconcile/ledgers.py", "from reliable_mq.outbox.stub import Stub"),
        ("outbox/composing.py", "from reliable_mq.client.asyncio_client import AsyncClient"),
        ("outbox/sql_transaction.py", "from reliable_mq.client.sending.outgoing import letter"),
        ("runtime/server.py", "from reliable_mq.app import application"),
    ],
)
def test_a_planted_violation_is_found(path: str, source: str) -> None:
    assert violations(path, source)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("wire/frame.py", "import struct\nfrom reliable_mq.errors import FrameError"),
        ("wire/frame.py", "from . import codes"),
        ("client/asyncio_client.py", "import asyncio\nfrom reliable_mq.runtime import connection"),
        ("idempotency/redis_lease.py", "import time"),
        (
            "reconcile/runs/spark_job.py",
            "from reliable_mq.database.sql_stub_table import message_stub_table",
        ),
        ("runtime/server.py", "import asyncio\nfrom reliable_mq.broker_core import core"),
        ("app/application.py", "from reliable_mq.outbox import transaction"),
    ],
)
def test_what_the_rules_allow_is_not_reported(path: str, source: str) -> None:
    assert violations(path, source) == []
