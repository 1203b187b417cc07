"""The reference page of metrics, from their declarations."""

from tests.documentation.declared import as_sentence, code, table

from reliable_mq.telemetry.metrics import METRICS, SOURCES

HEAD = """# Metrics

Install `reliable-mq[prometheus]`, and let a command serve the metrics:

```sh
reliable-mq run --app shop:mq --metrics-port 9464
```

In a program of your own, call `mq.register_metrics()`. [Observation](observation.md) explains the
values of labels. This page is made from the declarations in the code.

"""


DAILY = """
## Of a reconciliation

`reliable-mq reconcile --prometheus FILE` writes these gauges for a collector of text files. Their
labels are in [results](reconciliation_results.md#metrics).

"""


def of_reconciliation() -> list[tuple[str, str]]:
    """Return the names and texts of the metrics that a run of `reconcile` writes."""
    return [(each.name, each.help) for each in METRICS.values() if each.source == "reconcile"]


def rows_of(source: str) -> list[list[str]]:
    """Return a row for each metric of a source, in the order of their declaration."""
    return [
        [
            code(each.name),
            each.kind,
            each.unit or "things",
            ", ".join(map(code, each.labels)) or "none",
            as_sentence(each.help)
            + (f" Earlier name of {code(each.alias_of)}." * bool(each.alias_of)),
        ]
        for each in METRICS.values()
        if each.source == source
    ]


def page() -> str:
    """Return the page."""
    parts = [
        f"\n## Of the {source}\n\nServed by {served}.\n\n"
        + table(("metric", "kind", "unit", "labels", "what it says"), rows_of(source))
        for source, served in SOURCES.items()
        if source != "reconcile"
    ]
    daily = [[code(name), as_sentence(text)] for name, text in of_reconciliation()]
    return f"{HEAD}{''.join(parts)}{DAILY}{table(('metric', 'what it says'), daily)}"
