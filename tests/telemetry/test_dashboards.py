"""The dashboards and the alert rules name only metrics and labels that are declared.

Their expressions are read by Prometheus's own grammar, and the file of rules by promtool, where it
is installed (Debian's package `prometheus`).
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reliable_mq.telemetry.log_events import EVENTS
from reliable_mq.telemetry.metrics import METRICS

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "reliable_mq.rules.yml"
DASHBOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
TARGET_LABELS = {"instance", "job", "le"}
_STRING = re.compile(r'"[^"]*"')
_SUFFIX = re.compile(r"_(bucket|sum|count)$")
_SELECTOR = re.compile(r"\b((?:reliable_mq|messaging)_\w+)\s*(?:\{([^}]*)\})?")
_BY = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboards() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in DASHBOARDS]


def panels_of(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in dashboard["panels"] if each["type"] != "row"]


def panels() -> list[dict[str, Any]]:
    return [each for dashboard in dashboards() for each in panels_of(dashboard)]


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for dashboard in dashboards():
        for variable in dashboard["templating"]["list"][1:]:
            yield variable["name"], variable["definition"]


def named(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each metric of an expression with the labels that select its series."""
    for name, selector in _SELECTOR.findall(_STRING.sub('""', expression)):
        if name.startswith("messaging_") and name not in METRICS and not _base(name):
            continue  # a label of OpenTelemetry's, checked as one
        yield name, set(re.findall(r"(\w+)\s*[=!]", selector))


def _base(name: str) -> str:
    """Return the histogram of a series; "": it is none."""
    base = _SUFFIX.sub("", name)
    return base if base != name and METRICS[base].kind == "histogram" else ""


@pytest.mark.parametrize(("title", "expression"), list(expressions()))
def test_each_metric_and_label_of_an_expression_is_declared(title: str, expression: str) -> None:
    found = list(named(expression))
    assert found, title
    known: set[str] = set(TARGET_LABELS)
    for name, selected in found:
        metric = METRICS[_base(name) or name]
        assert not metric.alias_of, f"{title}: {name} is an earlier name"
        assert selected <= {*metric.labels, "instance", "job"}, title
        known |= set(metric.labels)
    for labels in _BY.findall(expression):
        assert {label.strip() for label in labels.split(",")} <= known, title


GRAFANA = {"$__rate_interval": "1m", "$__range": "1h", "$__interval": "1m"}


@pytest.fixture(scope="module")
def promql() -> Any:
    """Give Prometheus's own grammar."""
    return pytest.importorskip("promql_parser", reason="the extra dev has promql-parser")


@pytest.mark.parametrize(
    ("title", "expression"),
    [each for each in expressions() if not each[1].startswith("label_values(")],
)
def test_an_expression_is_one_that_prometheus_accepts(
    promql: Any, title: str, expression: str
) -> None:
    for name, value in GRAFANA.items():
        expression = expression.replace(name, value)
    promql.parse(expression)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("rate(reliable_mq_lag_messages)", "expected type matrix"),
        ("sum by (rate(up[1m]))", "invalid promql query"),
        ('up{job=~"("}', "illegal regex"),
        ("rated(up[1m])", "unknown function"),
    ],
)
def test_an_expression_that_prometheus_refuses_is_found(promql: Any, wrong: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        promql.parse(wrong)


def test_each_rule_has_what_prometheus_takes_and_nothing_else(promql: Any) -> None:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    assert len({each["name"] for each in groups}) == len(groups)
    for group in groups:
        assert group.keys() <= {"name", "interval", "limit", "rules"}
    for rule in rules():
        assert rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
        assert promql.parse_duration(rule.get("for", "1m")).total_seconds() > 0
        texts = [*rule["labels"].values(), *rule["annotations"].values()]
        assert all(text.count("{{") == text.count("}}") for text in texts)


def test_promtool_accepts_the_file_of_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    words = [promtool, "check", "rules", str(RULES)]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


def test_a_counter_is_never_shown_without_a_rate() -> None:
    for title, expression in expressions():
        for name, _ in named(expression):
            if METRICS.get(name) is not None and METRICS[name].kind == "counter":
                assert re.search(rf"(rate|increase)\({name}", expression), title


def test_each_metric_that_is_no_earlier_name_is_shown_or_alerted_on() -> None:
    used = {_base(name) or name for _, each in expressions() for name, _ in named(each)}
    detail = {name for name in METRICS if name.startswith("reliable_mq_reconcile_")}
    detail |= {f"reliable_mq_{each}_reading_age_seconds" for each in ("name_server", "endpoint")}
    wanted = {name for name, metric in METRICS.items() if not metric.alias_of}
    assert wanted - used - detail == set()


def test_each_rule_says_what_is_wrong_and_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names))
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_a_rule_about_databases_keeps_applications_apart() -> None:
    """Given two applications whose databases are called main, then one cannot hide the other."""
    about_databases = [
        labels.split(", ")
        for rule in rules()
        for labels in _BY.findall(rule["expr"])
        if "database" in labels
    ]
    assert len(about_databases) >= 5
    assert all("job" in labels for labels in about_databases)


def test_each_log_event_that_a_rule_names_is_in_the_catalogue() -> None:
    for rule in rules():
        text = rule["annotations"]["description"]
        if "log" in text:
            words = re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", text)
            assert set(words) <= EVENTS.keys(), rule["alert"]


def test_dashboards_are_told_apart() -> None:
    assert len({each["uid"] for each in dashboards()}) == len(DASHBOARDS) == 2


def test_legends_name_only_labels_of_their_series() -> None:
    for panel in panels():
        for target in panel["targets"]:
            labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            metrics = [METRICS[_base(name) or name] for name, _ in named(target["expr"])]
            known = TARGET_LABELS.union(*(metric.labels for metric in metrics))
            assert labels <= known, panel["title"]


@pytest.mark.parametrize("dashboard", dashboards(), ids=lambda each: str(each["uid"]))
def test_panels_do_not_overlap(dashboard: dict[str, Any]) -> None:
    taken: set[tuple[int, int]] = set()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for panel in panels_of(dashboard):
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
