"""The reference page of metrics, from their declarations."""

import re
from pathlib import Path

import yaml
from tests.documentation.declared import as_sentence, code, table

from reliable_mq.telemetry.metrics import METRICS, SOURCES, Metric

ROOT = Path(__file__).parents[2]
HEAD = """# Metrics

Install `reliable-mq[prometheus]`, and let a command serve the metrics:

```sh
reliable-mq run shop:mq --metrics-port 9464
```

In a program of your own, call `mq.register_metrics()`. [Observation](observation.md) explains the
values of labels. This page is made from the declarations in the code.

A gauge by topic or by group, such as `reliable_mq_outbox_unsent_stubs` or
`reliable_mq_dead_letters_open`, has a line only where there are rows: absent means 0. Write
`sum(reliable_mq_dead_letters_open) or vector(0)`. `reliable_mq_database_up` says whether the
database could be read.

"""


RULES = ROOT / "deploy" / "prometheus" / "reliable_mq.rules.yml"
ALERTS = """
## Alert rules

[A file](deployment/prometheus.md) has these rules for Prometheus. Load it, and name it under
`rule_files`. There is [a dashboard for Grafana](deployment/grafana.md), too.

- **critical**: messages stand still or are refused now. Wake somebody.
- **warning**: it becomes worse, or work waits for a person. The next working hour is soon enough.
- **If you take only one, take `ReliableMQOutboxStands`**: committed messages do not leave. It fires
  whatever is broken on the way to the broker. What is broken behind the broker,
  `ReliableMQNoWorkers` and `ReliableMQDeadLetters` tell.

What to do when one fires: for the outbox, the lag or the handlers,
[the five steps](../how-to/on_call.md), which tell slow handlers from hanging ones.

"""
DAILY = """
## Of a reconciliation

`reliable-mq reconcile --prometheus FILE` writes these gauges for a collector of text files. Their
labels are in [results](reconciliation_results.md#metrics).

"""


def of_reconciliation() -> list[tuple[str, str]]:
    """Return the names and texts of the metrics that a run of `reconcile` writes."""
    return [(each.name, each.help) for each in METRICS.values() if each.source == "reconcile"]


def is_flag(metric: Metric) -> bool:
    """Return whether a metric says yes (1) or no (0), by its text."""
    return re.search(r"(^|: )(1: |whether )", metric.help) is not None


def rows_of(source: str) -> list[list[str]]:
    """Return a row for each metric of a source, in the order of their declaration."""
    return [
        [
            code(each.name),
            each.kind,
            each.unit or ("0 or 1" if is_flag(each) else "things"),
            ", ".join(map(code, each.labels)) or "none",
            as_sentence(each.help)
            + (f" Earlier name of {code(each.alias_of)}." * bool(each.alias_of)),
        ]
        for each in METRICS.values()
        if each.source == source
    ]


def alert_rows() -> list[list[str]]:
    """Return a row for each alert rule: its name, when it fires, what it says."""
    rows = []
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            when = code(" ".join(rule["expr"].split()))
            lasts = f", for {rule['for']}" if "for" in rule else ""
            said = rule["annotations"]
            shown = re.sub(r"\{\{.*?\}\}", "…", f"{said['summary']}. {said['description']}.")
            rows.append([code(rule["alert"]), rule["labels"]["severity"], when + lasts, shown])
    return rows


def page() -> str:
    """Return the page."""
    parts = [
        f"\n## Of the {source}\n\nServed by {served}.\n\n"
        + table(("metric", "kind", "unit", "labels", "what it says"), rows_of(source))
        for source, served in SOURCES.items()
        if source != "reconcile"
    ]
    daily = [[code(name), as_sentence(text)] for name, text in of_reconciliation()]
    alerts = table(("alert", "severity", "when", "what it says"), alert_rows())
    served_by = "".join(parts)
    return f"{HEAD}{ALERTS}{alerts}{served_by}{DAILY}{table(('metric', 'what it says'), daily)}"
