"""Makes Prometheus metrics of the declarations; a value without a declaration is refused.

Receives samples: a declared name, the values of its labels, a number. It must not know where they
come from.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from reliable_mq.extras import extra_of
from reliable_mq.telemetry.metrics import METRICS, Metric, Source, metrics_of


class Sample(NamedTuple):
    """One value of a declared metric; `labels` has the values of its labels, in order."""

    name: str
    value: float
    labels: tuple[str, ...] = ()


class SampleCollector:
    """A collector for a registry of prometheus_client: it asks for samples at each scrape.

    All declared metrics of its sources are served, also those without a sample now.

    Args:
        read: returns the samples. It is called in the thread of a scrape, and must not wait long.
        sources: whose metrics it returns.

    Raises:
        ExtraMissing: prometheus_client is not installed.
    """

    def __init__(self, read: Callable[[], Iterable[Sample]], *sources: Source) -> None:
        with extra_of("prometheus_client"):
            from prometheus_client import core  # noqa: PLC0415 - an extra
        self._kinds: Mapping[str, Any] = {
            "gauge": core.GaugeMetricFamily,
            "counter": core.CounterMetricFamily,
        }
        self._read = read
        self._metrics = [metric for source in sources for metric in metrics_of(source)]

    def describe(self) -> Iterator[Any]:
        """Return the metrics without samples: the registry refuses names that it has."""
        return map(self._family, self._metrics)

    def collect(self) -> Iterator[Any]:
        """Return the metrics with their samples.

        Raises:
            KeyError: a sample is of no declared metric of these sources.
        """
        families = {metric.name: self._family(metric) for metric in self._metrics}
        for name, value, labels in self._read():
            families[name].add_metric(labels, value)
        return iter(families.values())

    def _family(self, metric: Metric) -> Any:
        return self._kinds[metric.kind](metric.name, metric.help, labels=metric.labels)


class SampleGauges:
    """Gauges that are set from samples at intervals: those of a process among several.

    In prometheus_client's multiprocess mode, only metrics of its own classes reach the process that
    serves them. There they are the sum over the living processes.

    Args:
        registry: the registry.
        source: whose metrics these are; all must be gauges.
    """

    def __init__(self, registry: Any, source: Source) -> None:
        self._gauges = {metric.name: made(registry, metric.name) for metric in metrics_of(source)}
        self._seen: set[tuple[str, tuple[str, ...]]] = set()

    def set_all(self, samples: Iterable[Sample]) -> None:
        """Set the gauges; one that has no sample any more becomes 0."""
        now = {(each.name, each.labels): each.value for each in samples}
        for name, labels in self._seen - now.keys():
            self._set(name, labels, 0)
        for (name, labels), value in now.items():
            self._set(name, labels, value)
        self._seen |= now.keys()

    def _set(self, name: str, labels: tuple[str, ...], value: float) -> None:
        gauge = self._gauges[name]
        (gauge.labels(*labels) if labels else gauge).set(value)


def made(registry: Any, name: str, buckets: Sequence[float] = ()) -> Any:
    """Return a new metric of prometheus_client for a declared one.

    Args:
        registry: where it is registered.
        name: the declared name.
        buckets: upper bounds, for a histogram.

    Raises:
        ExtraMissing: prometheus_client is not installed.
        ValueError: the registry has a metric with this name.
    """
    with extra_of("prometheus_client"):
        import prometheus_client  # noqa: PLC0415 - an extra
    metric = METRICS[name]
    if metric.kind == "counter":
        return prometheus_client.Counter(name, metric.help, metric.labels, registry=registry)
    if metric.kind == "histogram":
        return prometheus_client.Histogram(
            name, metric.help, metric.labels, registry=registry, buckets=buckets
        )
    return prometheus_client.Gauge(
        name, metric.help, metric.labels, registry=registry, multiprocess_mode="livesum"
    )
