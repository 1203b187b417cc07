"""What `reliable_mq` offers is pinned: a name is added or taken away on purpose."""

import subprocess
import sys

import pytest

import reliable_mq


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
