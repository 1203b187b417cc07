"""The report on a terminal: tables of rich, plain text when piped."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from reliable_mq.plain_text import printable
from reliable_mq.reconcile.judgement.verdict import FINDINGS, MEANINGS, Verdict
from reliable_mq.reconcile.report.report_chart import spell_ms
from reliable_mq.reconcile.report.summary import skipped_sentence, unread_sentence

FINDINGS_PRINTED_MAX = 50
_QUANTILES = ("p50", "p90", "p99", "max")


def print_report(summary: Mapping[str, Any], console: Console) -> None:
    """Print verdicts, findings with their proof, repairs, latencies, and where the report is."""
    console.print(_verdicts(summary))
    for finding in summary["findings"][:FINDINGS_PRINTED_MAX]:
        _print_finding(finding, console)
    hidden = summary["findings_total"] - min(len(summary["findings"]), FINDINGS_PRINTED_MAX)
    if hidden > 0:
        console.print(f"… and {hidden} more findings; all of them are in the Parquet files")
    if summary["repair"]:
        _print_repair(summary["repair"], console)
    if skipped := skipped_sentence(summary):
        console.print()
        _say(console, skipped)
    for each in summary.get("dead_letters", ()):
        letters = f"{each['count']:,} dead letter{'s' if each['count'] > 1 else ''}"
        console.print()
        line = f"{letters} of {each['consumer_group']}, to come again: {each['command']}"
        _say(console, line)
    for each in summary["unread_topics"]:
        console.print()
        _say(console, unread_sentence(each), "yellow")
    if any(summary["latency_ms"].values()):
        console.print()
        console.print(_latencies(summary["latency_ms"]))
    for name, lack in summary["whole"].items():
        if lack:
            _say(console, f"not whole: {name}: {lack}", "red")
    for each in summary.get("slaves", ()):
        _print_slave(each, console)
    if summary.get("told"):
        console.print(f"told     {summary['told']} new findings to the notifiers", highlight=False)
    console.print(f"report   {summary['report']}", soft_wrap=True, highlight=False)
    console.print(f"verdicts {summary['parquet']}", soft_wrap=True, highlight=False)


def _print_slave(slave: Mapping[str, Any], console: Console) -> None:
    begin, end = slave["slave_log"]
    young = slave["counts"]["on its way"]
    later = f", {young:,} younger records are on their way" if young else ""
    _say(console, f"slave    {slave['store']}: its log goes from {begin} to {end}{later}")
    if slave["listed"]:
        _say(console, f"         what it lacks is listed in {slave['listed']}")


def _say(console: Console, text: str, style: str | None = None) -> None:
    """Print a line in which a stranger's text may stand."""
    console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=True)


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=None, pad_edge=False)


def _verdicts(summary: Mapping[str, Any]) -> Table:
    table = _table(f"{summary['messages']:,} messages, {summary['rows']:,} verdicts")
    table.add_column("verdict")
    table.add_column("count", justify="right")
    table.add_column("meaning", style="dim")
    for name, count in summary["verdicts"].items():
        verdict = Verdict(name)
        style = "bold red" if verdict in FINDINGS else "green"
        table.add_row(Text(name, style), f"{count:,}", MEANINGS[verdict])
    return table


def _latencies(latencies: Mapping[str, Any]) -> Table:
    table = _table("latency")
    table.add_column("from … to")
    for name in ("messages", *_QUANTILES):
        table.add_column(name, justify="right")
    for name, latency in latencies.items():
        if latency:
            quantiles = (spell_ms(latency[each]) for each in _QUANTILES)
            table.add_row(name, f"{latency['count']:,}", *quantiles)
    return table


def _print_finding(finding: Mapping[str, Any], console: Console) -> None:
    group = finding["consumer_group"] or "-"
    head = f"{finding['verdict']}: {finding['message_id']} {finding['topic']} {group}"
    console.print()
    _say(console, head, "bold red")
    _say(console, f"  {finding['says']}")
    proof = ", ".join(f"{name}={value}" for name, value in finding["evidence"].items())
    _say(console, f"  {proof}", "dim")
    repair = finding["repair"] or "a person decides"
    repair += f": {finding['command']}" if finding.get("command") else ""
    _say(console, f"  repair: {repair}", "dim")


def _print_repair(repair: Mapping[str, Any], console: Console) -> None:
    console.print()
    if not repair["planned"]:
        console.print(f"repair ({repair['mode']}): nothing to be done")
        return
    table = Table(title=f"repair ({repair['mode']})", title_justify="left", box=None)
    for column in ("message", "action", "consumer groups", "because", "outcome"):
        table.add_column(column, overflow="fold")
    for action in repair["actions"][:FINDINGS_PRINTED_MAX]:
        cells = (
            action["message_id"],
            action["action"],
            ", ".join(action["consumer_groups"]),
            ", ".join(action["verdicts"]),
            action["outcome"],
        )
        table.add_row(*map(printable, cells))
    console.print(table)
    if repair["mode"] == "plan":
        console.print(f"{repair['planned']} stubs would be changed")
        return
    sent = f", {repair['sent']} sent" if "sent" in repair else ""
    console.print(f"{repair['changed']} of {repair['planned']} stubs changed{sent}")
