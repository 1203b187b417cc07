"""What people read of a run: summary, HTML in light and dark, the terminal, Prometheus' text."""

import io
import os
import re
import stat
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from tests.reconcile.test_flow import rows

from reliable_mq.errors import ConfigurationError
from reliable_mq.reconcile.judgement.flow import WAYS, Flow
from reliable_mq.reconcile.report.file_replaced import check_replaceable, replace_file
from reliable_mq.reconcile.report.prometheus_text import prometheus_text
from reliable_mq.reconcile.report.report_html import html_report
from reliable_mq.reconcile.report.report_text import print_report
from reliable_mq.reconcile.report.summary import SummaryRow, summarize

MOMENT = {"as_of": "2026-11-20T12:00:00Z", "since": None, "until": None, "grace_seconds": 600.0}
LEDGERS = {"stubs": 10, "consume_logs": 9, "first_deliveries": 8, "other_copies": 1}
UNDAMAGED = {"damaged_stretches": 0, "damaged_bytes": 0, "damaged_from": None}
DAMAGED = {"damaged_stretches": 2, "damaged_bytes": 4_096, "damaged_from": 77}
WHOLE: Mapping[str, str | None] = {"tables of sqlite:///shop.db": None, "broker log": None}
DAY = 20_777  # 2026-11-20
STRANGE = "<script>alert('topic')</script>"
GROUPS = (
    SummaryRow("settled", False, "orders", "payments", DAY, 4_000, 3_000, 1, 2),
    SummaryRow("settled", False, "orders", "payments", DAY - 1, 500, 400, 0, 0),
    SummaryRow("stuck", True, "orders", "payments", DAY, 2, 2, 0, 0),
    SummaryRow("unmanaged", False, STRANGE, "", DAY - 40, 3, 3, 0, 0),
    SummaryRow("orphan", True, None, "", None, 1, 1, 0, 0),
)


class Row(dict[str, Any]):
    """A row of the verdicts of which only what is told matters."""

    def __missing__(self, name: str) -> None:
        return None


FINDING = Row(
    verdict="stuck",
    message_id="0190",
    consumer_group="payments",
    topic="orders",
    stub_status=0,
    stub_note="<b>bold</b>",
    log_state=0,
    log_attempt=3,
    log_owner="worker-1",
)


def summary(**change: Any) -> dict[str, Any]:
    flow = Flow()
    flow.add(rows(1, 300))
    given: dict[str, Any] = {
        "run_id": "run-1",
        "moment": {**MOMENT, "store": "/var/lib/<store>"},
        "ledgers": LEDGERS | UNDAMAGED,
        "groups": GROUPS,
        "findings": [FINDING],
        "flow": flow,
        "whole": WHOLE,
        "read_topics": (),
    }
    told = summarize(**(given | change))
    actions = {"resend": {"planned": 3, "changed": 2}}
    done = {"message_id": "0190", "action": "resend", "consumer_groups": ["payments"]}
    done |= {"verdicts": ["stuck"], "outcome": "done"}
    told["repair"] = {"mode": "apply", "planned": 3, "changed": 2, "by_action": actions}
    told["repair"]["actions"] = [done]
    places = {"report": "/out/report.html", "parquet": "/out/verdicts.parquet"}
    return told | places | {"seconds": {"session": 1.0, "all": 2.5}}


def test_verdicts_are_told_by_topic_and_day() -> None:
    told = summary()

    assert (told["messages"], told["rows"], told["findings_total"]) == (3_406, 4_506, 3)
    assert told["by_day"] == [
        {"day": "2026-10-11", "topic": STRANGE, "messages": 3, "verdicts": {"unmanaged": 3}},
        {"day": "2026-11-19", "topic": "orders", "messages": 400, "verdicts": {"settled": 500}},
        {
            "day": "2026-11-20",
            "topic": "orders",
            "messages": 3_002,
            "verdicts": {"settled": 4_000, "stuck": 2},
        },
    ]
    assert [each["topic"] for each in told["by_topic"]] == ["", STRANGE, "orders"]


UNREAD = (
    SummaryRow("settled", False, "ordres", "", DAY, 3, 3, 0, 0),
    SummaryRow("settled", False, "orders", "", DAY, 5, 5, 0, 0),  # and groups wait for others
)


@pytest.mark.parametrize(
    ("read", "unread"),
    [
        ((), [{"topic": "ordres", "messages": 3}]),
        (("ordres",), []),
        (None, []),
    ],
    ids=["no group has read it", "a group has", "a broker was not asked"],
)
def test_a_topic_that_nobody_is_known_to_read_is_told(
    read: tuple[str, ...] | None, unread: list[dict[str, Any]]
) -> None:
    told = summary(groups=(*GROUPS, *UNREAD), read_topics=read)
    out = io.StringIO()
    print_report(told, Console(file=out, width=300))

    assert told["unread_topics"] == unread
    for shown in (out.getvalue(), html_report(told)):
        assert ("nobody is known to read topic ordres: 3 messages" in shown) == bool(unread)


def test_latencies_between_all_stations_and_throughput_are_told() -> None:
    told = summary()

    assert list(told["latency_ms"]) == list(WAYS)
    stations = {(each["station"], each["topic"]): each for each in told["stations"]}
    assert stations.keys() == {(name, topic) for name in WAYS for topic in ("a", "b")}
    whole = told["latency_ms"]["commit to broker"]
    assert whole["count"] > sum(
        each["count"] for (name, _), each in stations.items() if name == "commit to broker"
    ), "those without a topic are in the sum"
    throughput = told["throughput"]
    consumed = throughput["consumed"]
    assert consumed["count"] == sum(count for _, count in consumed["slots"])
    assert consumed["busiest_per_second"] >= consumed["per_second"] > 0
    assert summary(flow=Flow())["throughput"]["stored"]["slots"] == []


@pytest.mark.parametrize(
    ("change", "clean"),
    [
        ({"groups": GROUPS[:2]}, True),
        ({}, False),
        ({"groups": (), "ledgers": LEDGERS | DAMAGED}, False),
        ({"groups": (), "whole": {"broker b-2": "was not reached"}}, False),
    ],
)
def test_a_run_is_clean_when_nothing_is_found_and_every_ledger_was_whole(
    change: dict[str, Any], clean: bool
) -> None:
    told = summary(**change)

    assert (told["clean"], told["exit_code"]) == (clean, 0 if clean else 2)


class Document(HTMLParser):
    """Checks that what opens is closed, and keeps what could reach out of the file."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        if tag in ("script", "link", "img", "iframe"):
            self.outside.append(tag)
        self.outside += [name for name, _ in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [name for name, _ in attrs if name in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def document(told: Mapping[str, Any]) -> Document:
    parsed = Document()
    parsed.feed(html_report(told))
    assert parsed.open == []
    return parsed


def test_the_page_needs_nothing_but_itself_and_believes_no_ledger() -> None:
    page = document(summary())

    assert page.outside == []
    text = " ".join(page.texts)
    assert "<script>alert('topic')</script>" in text, "it is text, not an element"
    assert "<b>bold</b>" in text
    for heading in (
        *("By topic and day", "Latency between stations", "Throughput", "The ledgers"),
        *("Findings and their proof", "By topic and consumer group", "Repaired · 2"),
    ):
        assert heading in text
    assert "✓ whole" in text
    assert "Not whole" not in text


def test_the_page_says_first_what_was_not_whole() -> None:
    damaged = summary(ledgers=LEDGERS | DAMAGED, whole={**WHOLE, "broker b-2": "was not reached"})

    text = " ".join(document(damaged).texts)

    assert text.index("Not whole") < text.index("Verdicts")
    assert "2 stretches, together 4,096 bytes" in text
    assert "broker b-2: was not reached" in text


def test_a_page_of_nothing_and_one_of_a_year_are_pages_too() -> None:
    year = [replace_day(GROUPS[0], DAY - number) for number in range(365)]
    assert document(summary(groups=(), findings=[], flow=Flow())).open == []
    assert "By topic and day" not in " ".join(document(summary(groups=GROUPS[:1])).texts)
    whole = html_report(summary(groups=year))
    assert whole.count("<g><title>") == 62, (
        "the newest two months are drawn; all are in the summary"
    )


def replace_day(group: SummaryRow, day: int) -> SummaryRow:
    return group._replace(day=day)


def style() -> str:
    """Return the style sheet of the page."""
    return html_report(summary()).partition("<style>")[2].partition("</style>")[0]


def themes() -> dict[str, dict[str, str]]:
    """Return the colours of the style sheet, light and dark."""
    light, dark = re.findall(r":root \{(.*?)\}", style(), re.DOTALL)
    return {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for name, block in (("light", light), ("dark", dark))
    }


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_charts_can_be_read_in_light_and_dark(theme: str) -> None:
    """Given the colours of a theme, then text has the contrast that WCAG asks of text, 4.5 to 1,
    and parts of charts that of graphics, 3 to 1, on all that they lie on."""
    colours = themes()[theme]
    for ground in ("page", "card"):
        for text in ("text", "soft", "bad"):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        for part in ("good", "moving", "rest", "bad", "warn"):
            assert contrast(colours[part], colours[ground]) >= 3, (part, ground)
    assert contrast(colours["good"], colours["good-soft"]) >= 4.5
    assert contrast(colours["bad"], colours["bad-soft"]) >= 4.5
    assert contrast("#ffffff", "#000000") == pytest.approx(21)


def test_only_colours_of_the_theme_are_used() -> None:
    page = html_report(summary()).partition("</style>")[2]

    assert not re.findall(r'(?:fill|stroke|background|color)[:=]"?(?!var\(|none)#?\w+', page)
    used = set(re.findall(r"var\(--([\w-]+)\)", page + style()))
    assert all(used <= colours.keys() for colours in themes().values())


def printed(told: Mapping[str, Any]) -> str:
    screen = io.StringIO()
    print_report(told, Console(file=screen, width=120))
    return screen.getvalue()


def test_the_terminal_says_what_was_found_with_its_proof_and_where_the_report_is() -> None:
    lines = printed(summary()).splitlines()

    assert lines[0].strip() == "3,406 messages, 4,506 verdicts"
    (settled,) = (line.split()[:2] for line in lines if line.startswith("settled"))
    assert settled == ["settled", "4,500"]
    at = lines.index("stuck: 0190 orders payments")
    assert lines[at + 1].startswith("  RECEIVED at attempt 3, lease ended long ago")
    assert "lease_owner=worker-1" in lines[at + 2]
    assert lines[at + 3] == "  repair: release"
    assert "… and 2 more findings; all of them are in the Parquet files" in lines
    assert "2 of 3 stubs changed" in lines
    assert any(line.startswith("commit to broker") for line in lines)
    assert lines[-2:] == ["report   /out/report.html", "verdicts /out/verdicts.parquet"]
    assert not any("not whole" in line for line in lines)


def test_the_terminal_says_what_a_plan_would_change_and_that_nothing_is_to_be_done() -> None:
    told = summary()
    plan = {**told["repair"], "mode": "plan", "changed": 0}
    lines = printed({**told, "repair": plan}).splitlines()
    assert "3 stubs would be changed" in lines

    nothing = {**plan, "planned": 0, "actions": []}
    lines = printed({**told, "repair": nothing}).splitlines()
    assert "repair (plan): nothing to be done" in lines


def test_the_terminal_says_what_was_not_whole_and_who_was_told() -> None:
    told = summary(whole={"broker b-2": "was not reached"}, findings=[], groups=(), flow=Flow())
    text = printed(told | {"told": 3, "repair": None})

    assert "not whole: broker b-2: was not reached" in text
    assert "told     3 new findings to the notifiers" in text
    assert "latency" not in text


def metrics(told: Mapping[str, Any]) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    families = text_string_to_metric_families(prometheus_text(told, 1_000.5))
    return {
        family.name.removeprefix("reliable_mq_reconcile_"): {
            tuple(sorted(sample.labels.items())): sample.value for sample in family.samples
        }
        for family in families
    }


def test_prometheus_reads_the_metrics_and_finds_what_the_summary_says() -> None:
    told = summary(whole={"broker log": None, "broker b-2": 'said "no"\n\\'})
    found = metrics(told)

    assert found["finished_timestamp_seconds"] == {(): 1_000.5}
    assert found["as_of_timestamp_seconds"] == {(): 1_795_176_000.0}
    assert (found["clean"], found["findings"], found["messages"]) == (
        {(): 0},
        {(): 3},
        {(): 3_406},
    )
    by = {"consumer_group": "", "topic": STRANGE, "verdict": "unmanaged"}
    assert found["verdicts"][tuple(sorted(by.items()))] == 3
    assert sum(found["verdicts"].values()) == told["rows"]
    whole = {labels[0][1]: value for labels, value in found["ledger_whole"].items()}
    assert whole == {"broker log": 1, "broker b-2": 0}
    assert found["repairs"][("action", "resend"), ("state", "changed")] == 2
    each = told["stations"][0]
    where = {"quantile": "0.99", "station": each["station"], "topic": each["topic"]}
    assert found["latency_seconds"][tuple(sorted(where.items()))] == each["p99"] / 1_000
    assert metrics(told | {"repair": None}).get("repairs") is None


def test_strange_topics_do_not_break_the_metrics() -> None:
    strange = 'a"b\\c\nd'
    groups = (GROUPS[0]._replace(topic=strange),)

    ((labels, _),) = metrics(summary(groups=groups))["verdicts"].items()

    assert dict(labels)["topic"] == strange


def test_a_file_is_replaced_at_once_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given a file of metrics, when it is replaced, then who reads it may do so as before; when the
    disk is full, then the old one stays and nothing lies beside it."""
    path = tmp_path / "reconcile.prom"
    replace_file(path, "one\n")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    replace_file(path, "two\n")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, "three\n")
    assert path.read_text() == "two\n"
    assert list(tmp_path.iterdir()) == [path]


def test_where_no_file_can_be_is_said_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--prometheus: there is no folder .*/nowhere"):
        check_replaceable("--prometheus", tmp_path / "nowhere" / "x.prom")
    with pytest.raises(ConfigurationError, match="is a folder, not a file"):
        check_replaceable("--prometheus", tmp_path)
    check_replaceable("--prometheus", tmp_path / "x.prom")
