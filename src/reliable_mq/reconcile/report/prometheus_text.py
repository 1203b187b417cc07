"""A run's summary as metrics in Prometheus' text format, for a collector of text files. Pure.

All are gauges: they say how the last run went, and vanish or stay as they were when none comes any
more. That is what `…_finished_timestamp_seconds` is for.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from reliable_mq.telemetry.metrics import METRICS

PREFIX = "reliable_mq_reconcile"
Sample = tuple[Mapping[str, str], float]


def prometheus_text(summary: Mapping[str, Any], finished: float) -> str:
    """Return the metrics of a run.

    Args:
        summary: of the run; docs/explanation/reconciliation.md names its fields.
        finished: seconds since the epoch.
    """
    lines = [line for metric in _metrics(summary, finished) for line in _lines(*metric)]
    return "\n".join(lines) + "\n"


def _metrics(summary: Mapping[str, Any], finished: float) -> Iterator[tuple[str, Iterable[Sample]]]:
    as_of = datetime.fromisoformat(summary["as_of"]).timestamp()
    yield "finished_timestamp_seconds", [({}, finished)]
    yield "as_of_timestamp_seconds", [({}, as_of)]
    yield "duration_seconds", [({}, summary["seconds"]["all"])]
    yield "clean", [({}, int(summary["clean"]))]
    yield "messages", [({}, summary["messages"])]
    yield "findings", [({}, summary["findings_total"])]
    yield (
        "verdicts",
        [
            ({"verdict": verdict, **_place(topic)}, count)
            for topic in summary["by_topic"]
            for verdict, count in topic["verdicts"].items()
        ],
    )
    yield "ledger_rows", _ledger_rows(summary["ledgers"])
    yield (
        "ledger_whole",
        [({"ledger": name}, int(not lack)) for name, lack in summary["whole"].items()],
    )
    yield "damaged_bytes", [({}, summary["ledgers"]["damaged_bytes"])]
    yield "latency_seconds", _latencies(summary["stations"])
    yield "repairs", _repairs(summary)


def _place(topic: Mapping[str, Any]) -> dict[str, str]:
    return {"topic": topic["topic"], "consumer_group": topic["consumer_group"]}


def _ledger_rows(ledgers: Mapping[str, Any]) -> Iterator[Sample]:
    for name in ("stubs", "consume_logs", "first_deliveries", "other_copies"):
        yield {"ledger": name}, ledgers[name]


def _latencies(stations: Iterable[Mapping[str, Any]]) -> Iterator[Sample]:
    for each in stations:
        for quantile, name in (("0.5", "p50"), ("0.9", "p90"), ("0.99", "p99"), ("1", "max")):
            labels = {"station": each["station"], "topic": each["topic"], "quantile": quantile}
            yield labels, each[name] / 1000


def _repairs(summary: Mapping[str, Any]) -> Iterator[Sample]:
    repair = summary["repair"] or {"by_action": {}}
    for action, counts in repair["by_action"].items():
        for state in ("planned", "changed"):
            yield {"action": action, "state": state}, counts[state]


def _lines(name: str, samples: Iterable[Sample]) -> Iterator[str]:
    found, metric = list(samples), METRICS[f"{PREFIX}_{name}"]
    if found:
        yield f"# HELP {metric.name} {metric.help}"
        yield f"# TYPE {metric.name} {metric.kind}"
    for labels, value in found:
        told_labels = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{PREFIX}_{name}{{{told_labels}}} {value}" if labels else f"{PREFIX}_{name} {value}"


def _escaped(text: str) -> str:
    """Return a label's value as the format wants it."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
