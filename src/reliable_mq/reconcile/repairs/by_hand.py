"""Add commands to copy to the findings that no repair settles. Pure.

Receives the summary of a run and the locations of its ledgers. Returns the summary with commands of
`reliable-mq`. Only `dlq retry` sends a dead letter to its own consumer group again, through the
broker. A message that a repair sends again goes to every group of the topic.
"""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reliable_mq.command_words import BY_DJANGO, typed
from reliable_mq.database.sql_stub_table import DEFAULT_PREFIX
from reliable_mq.database.sql_urls import shown_url
from reliable_mq.reconcile.judgement.verdict import Verdict


@dataclass(frozen=True)
class LedgerLocations:
    """Where a run read its ledgers.

    `name_servers` "": the run used no cluster. `application`: MODULE:OBJECT of the application that
    named the databases; "": none.
    """

    urls: Sequence[str] = field(repr=False)
    prefix: str
    name_servers: str
    application: str = ""

    def words(self, *, at_broker: bool) -> list[str]:
        """Return the options for these locations. A password is left out, as in every report."""
        if self.application:  # it knows its databases, its broker and their passwords
            words = ["--app", self.application]
            return (
                [*words, "--broker", self.name_servers]
                if at_broker and self.name_servers
                else words
            )
        words = ["--app", "MODULE:OBJECT"]  # an application has all its databases
        if len(self.urls) == 1:
            words = ["--db", shown_url(self.urls[0])]
            words += ["--table-prefix", self.prefix] if self.prefix != DEFAULT_PREFIX else []
        return [*words, "--broker", self.name_servers or "HOST:PORT"] if at_broker else words


def with_commands(summary: Mapping[str, Any], place: LedgerLocations) -> dict[str, Any]:
    """Return a summary with a `command` for each finding, and with the list `dead_letters`.

    A finding that a repair settles has no command. Without a database there are no commands.
    """
    if not place.urls:
        return {**summary, "dead_letters": []}
    findings = [{**each, "command": _command(each, place)} for each in summary["findings"]]
    letters = Counter[str]()
    for part in summary["by_topic"]:
        letters[part["consumer_group"]] += part["verdicts"].get(Verdict.DEAD_LETTERED, 0)
    dead_letters = [
        {
            "consumer_group": group,
            "count": letters[group],
            "command": _retry(place, "--group", group),
        }
        for group in sorted(+letters)
    ]
    return {**summary, "findings": findings, "dead_letters": dead_letters}


def _command(finding: Mapping[str, Any], place: LedgerLocations) -> str | None:
    if finding["repair"] is not None:
        return None
    message_id = finding["message_id"]
    if finding["verdict"] != Verdict.DEAD_LETTERED:
        return _line("stub", "show", message_id, *place.words(at_broker=False))
    if "dead_letter_commit_log_offset" in finding["evidence"]:
        return _retry(place, message_id, "--group", finding["consumer_group"])
    # The dead letter has left the log. Only the stub can send the message, to all its groups.
    return _line("stub", "retry", message_id, *place.words(at_broker=False))


def _retry(place: LedgerLocations, *words: str) -> str:
    return _line("dlq", "retry", *words, *place.words(at_broker=True))


def _line(*words: str) -> str:
    text = shlex.join(words)
    if f" {BY_DJANGO}" in text:
        return typed(text.replace(f" {BY_DJANGO}", ""), BY_DJANGO)
    return typed(text)
