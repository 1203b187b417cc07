"""`manage.py reliable_mq VERB …`: every verb of `reliable-mq`, for this project.

    manage.py reliable_mq run --processes 4
    manage.py reliable_mq resend
    manage.py reliable_mq doctor
    manage.py reliable_mq stub list --escalated

The application need not be named: it is `reliable_mq.contrib.django:mq`.
"""

import os
import sys
from argparse import REMAINDER, ArgumentParser
from pathlib import Path
from sysconfig import get_path
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from reliable_mq.cli.main import run
from reliable_mq.cli.shared_options import APPLICATION_VARIABLE
from reliable_mq.command_words import DJANGO_APPLICATION


class Command(BaseCommand):
    """Passes its words to `reliable-mq`, with the application of this project."""

    help = "Run a verb of reliable-mq for this project: run, resend, doctor, stub, dlq, …"
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the verb; the exit code is that of `reliable-mq`."""
        self.execute_words(without_options_of_django(argv[2:]))

    def handle(self, *, words: list[str], **_options: Any) -> None:
        """Run the verb, called by `call_command("reliable_mq", "stub", "list", "--json")`.

        Raises:
            CommandError: the exit code of `reliable-mq` was not 0.
        """
        try:
            self.execute_words([str(each) for each in words])
        except SystemExit as ended:
            if ended.code:
                raise CommandError(
                    f"reliable-mq ended with the code {ended.code}", returncode=int(ended.code)
                ) from ended

    def add_arguments(self, parser: Any) -> None:
        """Accept any words."""
        parser.add_argument("words", nargs=REMAINDER)

    def execute_words(self, words: list[str]) -> None:
        """Run `reliable-mq` with these words and this application."""
        os.environ[APPLICATION_VARIABLE] = DJANGO_APPLICATION
        here = str(Path.cwd())
        sys.path[:0] = [] if here in sys.path else [here]
        share_path()
        run(words)


def share_path() -> None:
    """Let the processes of `run --processes` import what this one can.

    Python gives them neither the folder of `manage.py` nor `--pythonpath`.
    """
    installed = tuple(get_path(each) for each in ("stdlib", "purelib", "platlib"))
    own = (each for each in sys.path if each and not each.startswith(installed))
    os.environ["PYTHONPATH"] = os.pathsep.join(own)


def without_options_of_django(words: list[str]) -> list[str]:
    """Return the words without `--settings` and `--pythonpath`, which `manage.py` has obeyed."""
    options = ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--settings")
    options.add_argument("--pythonpath")
    return options.parse_known_args(words)[1]
