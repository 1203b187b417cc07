"""The declarations of metrics follow the rules of Prometheus, and the pages name them all."""

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from tests.documentation import metrics_page

from reliable_mq.client.observing.prometheus import PrometheusMiddleware
from reliable_mq.telemetry.families import Sample, SampleCollector, SampleGauges
from reliable_mq.telemetry.metrics import METRICS, SOURCES, Metric, metrics_of

DOCS = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.name)
def test_a_name_says_its_type_and_unit(metric: Metric) -> None:
    assert re.fullmatch(r"(reliable_mq|messaging)(_[a-z]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not metric.unit or f"_{metric.unit}" in metric.name
    assert metric.source in SOURCES
    assert not metric.help.endswith(".")
    if metric.convention:
        assert metric.name.startswith(metric.convention.replace(".", "_"))
        assert metric.labels[0] == "messaging_operation_name"
    if metric.alias_of:
        assert METRICS[metric.alias_of].kind == metric.kind


def names_in(text: str) -> set[str]:
    labels = {label for metric in METRICS.values() for label in metric.labels}
    found = set(re.findall(r"\b(?:reliable_mq|messaging)_[a-z_]*[a-z]\b", text))
    return found - labels - {"reliable_mq_reconcile", "reliable_mq_log"}


def test_the_page_of_metrics_names_every_metric_and_no_other() -> None:
    kinds = r"_(bucket|sum|count)\b"  # of a histogram, in the expressions of alert rules
    assert names_in(re.sub(kinds, "", metrics_page.page())) == METRICS.keys()


def test_the_other_pages_name_only_metrics_that_there_are() -> None:
    results = (DOCS / "reconciliation_results.md").read_text()
    for metric in metrics_of("reconcile"):  # its page leaves out what all begin with
        name = metric.name.removeprefix("reliable_mq_reconcile_")
        assert f"`{name}`" in results
    assert names_in(results) <= METRICS.keys()
    named = names_in((DOCS / "observation.md").read_text())
    assert {each.removesuffix("_bucket") for each in named} <= METRICS.keys()  # of a histogram


def test_a_sample_that_is_not_declared_is_refused() -> None:
    collector = SampleCollector(lambda: [Sample("reliable_mq_surprise", 1)], "worker")
    with pytest.raises(KeyError, match="reliable_mq_surprise"):
        collector.collect()


def test_a_gauge_without_a_sample_any_more_becomes_zero() -> None:
    registry = CollectorRegistry()
    gauges = SampleGauges(registry, "worker")
    name = "reliable_mq_handler_calls"
    gauges.set_all([Sample(name, 2, ("payments",)), Sample(name, 1, ("billing",))])
    gauges.set_all([Sample(name, 3, ("payments",))])
    assert registry.get_sample_value(name, {"group": "payments"}) == 3
    assert registry.get_sample_value(name, {"group": "billing"}) == 0


def test_without_earlier_names_the_metrics_have_only_their_new_ones() -> None:
    registry = CollectorRegistry()
    PrometheusMiddleware(registry, earlier_names=False)
    served = {
        f"{each.name}_total" if each.type == "counter" else each.name for each in registry.collect()
    }
    assert served == {each.name for each in metrics_of("client") if not each.alias_of}
