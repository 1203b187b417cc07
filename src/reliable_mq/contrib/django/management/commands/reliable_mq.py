"""`manage.py reliable_mq VERB …`: every verb of `reliable-mq`, for this project.

    manage.py reliable_mq run --processes 4
    manage.py reliable_mq resend
    manage.py reliable_mq doctor
    manage.py reliable_mq stub list --escalated

The application need not be named: it is `reliable_mq.contrib.django:mq`.
"""

import os
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from reliable_mq.cli.main import run

APPLICATION = "reliable_mq.contrib.django:mq"
_NAMED_FIRST = ("run", "resend", "create-tables", "migrate", "doctor")
_NAMED_BY_OPTION = ("pause", "stub", "dlq", "notifiers")


class Command(BaseCommand):
    """Passes its words to `reliable-mq`, with the application of this project."""

    help = "Run a verb of reliable-mq for this project: run, resend, doctor, stub, dlq, …"
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the verb; the exit code is that of `reliable-mq`."""
        self.execute_words(argv[2:])

    def handle(self, *words: Any, **_options: Any) -> None:
        """Run the verb, called by `call_command("reliable_mq", "doctor")`."""
        self.execute_words([str(each) for each in words])

    def add_arguments(self, parser: Any) -> None:
        """Accept any words."""
        parser.add_argument("words", nargs="*")

    def execute_words(self, words: list[str]) -> None:
        """Run `reliable-mq` with these words and this application."""
        os.environ.setdefault("RELIABLE_MQ_APP", APPLICATION)
        here = str(Path.cwd())
        sys.path[:0] = [] if here in sys.path else [here]
        run(with_application(words))


def with_application(words: list[str]) -> list[str]:
    """Return the words with the application where the verb expects it."""
    if not words or "--help" in words or "-h" in words:
        return words
    verb, rest = words[0], words[1:]
    if verb in _NAMED_FIRST:
        return [verb, APPLICATION, *rest]
    if verb in _NAMED_BY_OPTION and not {"--app", "--db"} & set(rest):
        return [verb, *rest, "--app", APPLICATION]
    return words
