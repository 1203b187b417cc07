"""The report on a terminal: tables of rich, plain text when piped."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from reliable_mq.reconcile.verdict import FINDINGS, MEANINGS, Verdict

FINDINGS_PRINTED_MAX = 50


def print_report(summary: Mapping[str, Any], console: Console) -> None:
    """Print verdicts, findings with their proof, repairs, and where the report is."""
    console.print(_verdicts(summary))
    for finding in summary["findings"][:FINDINGS_PRINTED_MAX]:
        _print_finding(finding, console)
    hidden = summary["findings_total"] - min(len(summary["findings"]), FINDINGS_PRINTED_MAX)
    if hidden > 0:
        console.print(f"… and {hidden} more findings; all of them are in the Parquet files")
    if summary["ledgers"]["damaged_stretches"]:
        console.print(_damage(summary["ledgers"]), style="red", highlight=False)
    if summary["repair"]:
        _print_repair(summary["repair"], console)
    console.print(f"report   {summary['report']}", soft_wrap=True, highlight=False)
    console.print(f"verdicts {summary['parquet']}", soft_wrap=True, highlight=False)


def _verdicts(summary: Mapping[str, Any]) -> Table:
    table = Table(
        title=f"{summary['messages']:,} messages, {summary['rows']:,} verdicts",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    table.add_column("verdict")
    table.add_column("count", justify="right")
    table.add_column("meaning", style="dim")
    for name, count in summary["verdicts"].items():
        verdict = Verdict(name)
        style = "bold red" if verdict in FINDINGS else "green"
        table.add_row(f"[{style}]{name}[/]", f"{count:,}", MEANINGS[verdict])
    return table


def _print_finding(finding: Mapping[str, Any], console: Console) -> None:
    group = finding["consumer_group"] or "-"
    head = f"{finding['verdict']}: {finding['message_id']} {finding['topic']} {group}"
    console.print()
    console.print(head, style="bold red", markup=False, highlight=False, soft_wrap=True)
    console.print(f"  {finding['says']}", markup=False, highlight=False, soft_wrap=True)
    proof = ", ".join(f"{name}={value}" for name, value in finding["evidence"].items())
    console.print(f"  {proof}", style="dim", markup=False, highlight=False, soft_wrap=True)
    console.print(f"  repair: {finding['repair'] or 'a person decides'}", style="dim")


def _damage(ledgers: Mapping[str, Any]) -> str:
    return (
        f"damage: {ledgers['damaged_stretches']} stretches of the log, together"
        f" {ledgers['damaged_bytes']:,} bytes, the first at {ledgers['damaged_from']}"
    )


def _print_repair(repair: Mapping[str, Any], console: Console) -> None:
    table = Table(title=f"repair ({repair['mode']})", title_justify="left", box=None)
    for column in ("message", "action", "consumer groups", "because", "outcome"):
        table.add_column(column, overflow="fold")
    for action in repair["actions"][:FINDINGS_PRINTED_MAX]:
        table.add_row(
            action["message_id"],
            action["action"],
            ", ".join(action["consumer_groups"]),
            ", ".join(action["verdicts"]),
            action["outcome"],
        )
    console.print()
    console.print(table)
    sent = f", {repair['sent']} sent" if "sent" in repair else ""
    console.print(f"{repair['changed']} of {repair['planned']} stubs changed{sent}")
