"""The reference page of metrics, from what the middleware and reconciliation register."""

from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry
from tests.documentation.declared import as_sentence, code, table

from reliable_mq import PrometheusMiddleware

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


def page() -> str:
    """Return the page."""
    rows = [
        [code(each.name), each.kind, ", ".join(map(code, each.labels)), as_sentence(each.text)]
        for each in metrics()
    ]
    return HEAD + table(("metric", "kind", "labels", "what it counts"), rows)
