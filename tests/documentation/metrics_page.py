"""The reference page of metrics, from what the middleware and reconciliation register."""

import ast
import inspect
import textwrap
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from tests.documentation.declared import as_sentence, code, table

from reliable_mq import PrometheusMiddleware
from reliable_mq.reconcile.report import prometheus_text

HEAD = """# Metrics

Install `reliable-mq[prometheus]`, give the application a `PrometheusMiddleware`, and let a command
serve the metrics:

```python
from reliable_mq import PrometheusMiddleware, ReliableMQ

mq = ReliableMQ("shop", middleware=[PrometheusMiddleware()])
```

```sh
reliable-mq run shop:mq --metrics-port 9464
```

[Observation](observation.md) explains the values of labels. This page is made from the registered
metrics.

"""


DAILY = """
## Of a reconciliation

`reliable-mq reconcile --prometheus FILE` writes these gauges for a collector of text files. Their
labels are in [results](reconciliation_results.md#metrics).

"""


class Metric(NamedTuple):
    """One registered metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def metrics() -> list[Metric]:
    """Return the metrics that a `PrometheusMiddleware` registers, by name."""
    registry = CollectorRegistry()
    PrometheusMiddleware(registry)
    found: list[Metric] = []
    for each in list(registry._collector_to_names):
        made: Any = each
        for family in made.describe():
            name = f"{family.name}_total" if family.type == "counter" else family.name
            labels = tuple(getattr(made, "_labelnames", ()))
            found.append(Metric(name, family.type, labels, family.documentation))
    return sorted(found)


def of_reconciliation() -> list[tuple[str, str]]:
    """Return the names and texts of the metrics that a run of `reconcile` writes."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(prometheus_text._metrics)))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Yield) and isinstance(node.value, ast.Tuple):
            name, text, *_ = (getattr(each, "value", "") for each in node.value.elts)
            found.append((f"{prometheus_text.PREFIX}_{name}", str(text)))
    return sorted(found)


def page() -> str:
    """Return the page."""
    rows = [
        [code(each.name), each.kind, ", ".join(map(code, each.labels)), as_sentence(each.text)]
        for each in metrics()
    ]
    shown = table(("metric", "kind", "labels", "what it counts"), rows)
    daily = [[code(name), as_sentence(text)] for name, text in of_reconciliation()]
    return f"{HEAD}{shown}{DAILY}{table(('metric', 'what it says'), daily)}"
