"""The HTML report of a run: one file, no external resources, readable light and dark. Pure.

Receives the summary (`summary`); hands on the document. Everything that comes from a ledger is
escaped: a topic or a dead-letter reason is written by strangers.
"""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

from reliable_mq.reconcile.judgement.verdict import MEANINGS, Verdict
from reliable_mq.reconcile.report.report_chart import colour, spell_ms, verdict_bar
from reliable_mq.reconcile.report.report_flow import (
    days_section,
    latency_section,
    table,
    throughput_section,
)
from reliable_mq.reconcile.report.report_style import STYLE
from reliable_mq.reconcile.report.summary import unread_sentence

FINDINGS_OPEN_MAX = 1
_ORDER = list(Verdict)


def html_report(summary: Mapping[str, Any]) -> str:
    """Return the report as one HTML document."""
    sections = (
        _missing(summary["whole"]),
        _verdicts(summary),
        _findings(summary),
        _repair(summary["repair"]),
        _dead_letters(summary.get("dead_letters", ())),
        _unread(summary["unread_topics"]),
        _topics(summary["by_topic"]),
        days_section(summary["by_day"]),
        latency_section(summary["latency_ms"], summary["stations"]),
        throughput_section(summary["throughput"]),
        _whole(summary),
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Reconciliation {_text(summary['as_of'])}</title><style>{STYLE}</style></head>"
        f"<body><main>{_head(summary)}{_tiles(summary)}{''.join(sections)}{_foot(summary)}"
        "</main></body></html>\n"
    )


def _text(value: object) -> str:
    return escape(str(value))


def _head(summary: Mapping[str, Any]) -> str:
    found = summary["findings_total"]
    if summary["clean"]:
        badge = '<div class="badge">✓ clean</div>'
    elif found:
        badge = f'<div class="badge bad">{found:,} finding{"s" if found > 1 else ""}</div>'
    else:
        badge = '<div class="badge bad">a ledger is not whole</div>'
    since, until = summary["since"] or "the beginning", summary["until"] or "now"
    return (
        "<header><div><h1>Reconciliation</h1>"
        f'<p class="soft">Judged as of {_text(summary["as_of"])}, messages from {_text(since)} to'
        f" {_text(until)}, grace {spell_ms(summary['grace_seconds'] * 1000)}</p>"
        f'<p class="soft">Store <code>{_text(summary["store"])}</code></p></div>{badge}</header>'
    )


def _tiles(summary: Mapping[str, Any]) -> str:
    ledgers = summary["ledgers"]
    tiles = {
        "messages": summary["messages"],
        "verdicts": summary["rows"],
        "stubs": ledgers["stubs"],
        "broker records": ledgers["first_deliveries"],
        "consume logs": ledgers["consume_logs"],
        "sent again": summary["suppressed_copies"],
        "redeliveries": summary["retries"],
    }
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{count:,}</b><span>{name}</span></div>'
            for name, count in tiles.items()
        )
        + "</div>"
    )


def _missing(whole: Mapping[str, str | None]) -> str:
    """Return what a reader has to know before all else: what of the ledgers was not there."""
    lacks = "".join(f"<p>{_text(name)}: {_text(lack)}</p>" for name, lack in whole.items() if lack)
    return f'<section class="notice"><h2>Not whole</h2>{lacks}</section>' if lacks else ""


def _whole(summary: Mapping[str, Any]) -> str:
    """Return which ledgers were read, and whether whole."""
    rows = (
        (_text(name), f'<span class="bad">{_text(lack)}</span>' if lack else "✓ whole")
        for name, lack in summary["whole"].items()
    )
    return f"<section><h2>The ledgers</h2>{table(('ledger', 'was read'), rows)}</section>"


def _verdicts(summary: Mapping[str, Any]) -> str:
    counts: Mapping[str, int] = summary["verdicts"]
    total = sum(counts.values())
    rows = "".join(
        f'<tr><td style="white-space:nowrap"><span class="dot" style="background:{colour(name)}">'
        f'</span>{_text(name)}</td><td class="number">{count:,}</td>'
        f'<td class="number soft">{100 * count / total:.2f} %</td>'
        f'<td class="soft">{_text(MEANINGS[Verdict(name)])}</td></tr>'
        for name, count in counts.items()
    )
    if not rows:
        return "<section><h2>Verdicts</h2><p>The ledgers hold no message.</p></section>"
    return (
        f"<section><h2>Verdicts</h2>{verdict_bar(counts, 18)}"
        f'<table style="margin-top:14px">{rows}</table></section>'
    )


def _findings(summary: Mapping[str, Any]) -> str:
    findings: Sequence[Mapping[str, Any]] = summary["findings"]
    if not findings:
        return ""
    in_order = sorted(findings, key=lambda finding: _ORDER.index(Verdict(finding["verdict"])))
    parts = []
    for verdict, group in groupby(in_order, key=lambda finding: str(finding["verdict"])):
        rows = list(group)
        cards = "".join(
            _finding(finding, is_open=number < FINDINGS_OPEN_MAX)
            for number, finding in enumerate(rows)
        )
        parts.append(
            f"<h3>{_text(verdict)} · {len(rows)}</h3>"
            f'<p class="soft" style="margin-bottom:10px">{_text(MEANINGS[Verdict(verdict)])}</p>'
            f"{cards}"
        )
    hidden = summary["findings_total"] - len(findings)
    more = f'<p class="soft">and {hidden:,} more, in the Parquet files</p>' if hidden > 0 else ""
    return f"<section><h2>Findings and their proof</h2>{''.join(parts)}{more}</section>"


def _finding(finding: Mapping[str, Any], *, is_open: bool) -> str:
    values = "".join(
        f"<div><dt>{_text(name.replace('_', ' '))}</dt><dd>{_value(value)}</dd></div>"
        for name, value in finding["evidence"].items()
    )
    repair = _text(finding["repair"] or "a person decides")
    if finding.get("command"):
        repair += f": <code>{_text(finding['command'])}</code>"
    return (
        f"<details{' open' if is_open else ''}><summary>"
        f'<span class="mono">{_text(finding["message_id"])}</span><span class="group">'
        f"{_text(finding['topic'])} → {_text(finding['consumer_group'] or 'broker only')}</span>"
        f'<span class="says">{_text(finding["says"])}</span></summary>'
        f"<dl>{values}<div><dt>repair</dt><dd>{repair}</dd></div></dl></details>"
    )


def _value(value: object) -> str:
    return _text(", ".join(map(str, value)) if isinstance(value, list) else value)


def _repair(repair: Mapping[str, Any] | None) -> str:
    if not repair:
        return ""
    rows = (
        (
            f'<span class="mono">{_text(action["message_id"])}</span>',
            _text(action["action"]),
            _text(", ".join(action["consumer_groups"]) or "broker only"),
            _text(", ".join(action["verdicts"])),
            _text(action["outcome"]),
        )
        for action in repair["actions"]
    )
    title = "Repair plan" if repair["mode"] == "plan" else f"Repaired · {repair['changed']}"
    heads = ("message", "action", "consumer groups", "because", "outcome")
    return f"<section><h2>{title}</h2>{table(heads, rows)}</section>"


def _dead_letters(letters: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        (
            _text(each["consumer_group"]),
            f"{each['count']:,}",
            f"<code>{_text(each['command'])}</code>",
        )
        for each in letters
    ]
    if not rows:
        return ""
    heads = ("consumer group", "dead letters", "lets them come again")
    return f"<section><h2>Dead letters, for a person</h2>{table(heads, rows)}</section>"


def _unread(topics: Iterable[Mapping[str, Any]]) -> str:
    told = "".join(f"<p>{_text(unread_sentence(each))}</p>" for each in topics)
    return f"<section><h2>Topics that nobody is known to read</h2>{told}</section>" if told else ""


def _topics(topics: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        (
            _text(topic["topic"]),
            _text(topic["consumer_group"] or "broker only"),
            f"{sum(topic['verdicts'].values()):,}",
            verdict_bar(topic["verdicts"], 10),
        )
        for topic in topics
    ]
    if not rows:
        return ""
    heads = ("topic", "consumer group", "verdicts", "")
    told = table(heads, rows, numbers_from=2)
    return f"<section><h2>By topic and consumer group</h2>{told}</section>"


def _foot(summary: Mapping[str, Any]) -> str:
    seconds = summary.get("seconds", {}).get("all")
    took = f" in {seconds} s" if seconds is not None else ""
    return (
        f"<footer>Run <code>{_text(summary['run_id'])}</code>{took}. All verdicts with their"
        " evidence are in <code>verdicts.parquet</code> beside this page.</footer>"
    )
