"""What `reliable_mq` offers is pinned: a name is added or taken away on purpose."""

import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import reliable_mq

ROOT = Path(__file__).parents[1]
# Where the imports at the head of a module end: mypy looks at those.
HEAD_END = re.compile(r"^(?:async def |def |class |@|\w+(?:: [^=\n]+)? = )", re.MULTILINE)
IMPORT = re.compile(r"^[ \t]*from (reliable_mq[\w.]*) import (\w[\w, ]*)$", re.MULTILINE)
NEEDS_A_PROJECT = "reliable_mq.contrib.django"


def test_these_are_the_names_of_the_package() -> None:
    assert reliable_mq.__all__ == [
        "TLS",
        "AsyncClient",
        "AsyncPullConsumer",
        "AsyncSimpleConsumer",
        "AsyncTransaction",
        "Client",
        "ClientSettings",
        "CloudEvent",
        "Consumed",
        "Credentials",
        "Decision",
        "Delivery",
        "Ending",
        "GroupChange",
        "IdempotentCall",
        "LoggingMiddleware",
        "Message",
        "MessageQueue",
        "MessageTraceMiddleware",
        "Middleware",
        "OpenTelemetryMiddleware",
        "PeriodicState",
        "PrometheusMiddleware",
        "PullConsumer",
        "Recall",
        "ReceivedMessage",
        "Reject",
        "ReliableMQ",
        "Retry",
        "SendResult",
        "Sending",
        "SimpleConsumer",
        "Skip",
        "Sql",
        "Subscription",
        "Tick",
        "Topic",
        "TopicChange",
        "Transaction",
        "injected",
        "schema",
    ]


@pytest.mark.parametrize("name", reliable_mq.__all__)
def test_every_exported_name_is_there(name: str) -> None:
    assert getattr(reliable_mq, name).__name__ == name


def test_a_name_that_is_not_there_is_refused_as_usual() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = reliable_mq.Nonsense


def test_importing_the_package_imports_no_database_library() -> None:
    code = "import sys, reliable_mq; print('sqlalchemy' in sys.modules, 'redis' in sys.modules)"

    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert shown.stdout.split() == ["False", "False"]


def late_imports() -> Iterator[tuple[str, str]]:
    """Yield what is imported below the heads of modules, also by programs that are text."""
    for path in (*ROOT.glob("tests/**/*.py"), *ROOT.glob("bench/**/*.py")):
        text = path.read_text()
        if end := HEAD_END.search(text):
            for module, names in IMPORT.findall(text[end.start() :]):
                yield from ((module, each.split()[0]) for each in names.split(","))


def test_programs_in_texts_import_what_is_there() -> None:
    """Such a program may run in `make interop` only, where it is found late."""
    found = {each for each in late_imports() if not each[0].startswith(NEEDS_A_PROJECT)}
    assert len(found) > 50
    for module, name in sorted(found):
        place = import_module(module)
        is_module = hasattr(place, "__path__") and find_spec(f"{module}.{name}") is not None
        assert is_module or hasattr(place, name), (module, name)
