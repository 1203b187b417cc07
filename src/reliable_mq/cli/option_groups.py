"""A command whose help lists its options in groups, and whose usage errors are one line.

typer calls the group of an option its panel. Usage errors exit with `BAD_USAGE` (1) here, for a
verb whose exit code 2 has another meaning.
"""

from typing import Any

import typer
from typer.core import TyperCommand

from reliable_mq.cli.saying import say

_UsageError: type[Exception] = typer.BadParameter.__mro__[1]  # typer does not export it
BAD_USAGE = 1


class GroupedCommand(TyperCommand):
    """Shows options by `rich_help_panel`, in the order of each group's first option."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write one section of help for each group."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            line = param.get_help_record(ctx)
            if line is not None:
                name = getattr(param, "rich_help_panel", None) or "Options"
                groups.setdefault(name, []).append(line)
        for name, lines in groups.items():
            with formatter.section(name):
                formatter.write_dl(lines)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; a usage error is printed in one line."""
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            text = error.format_message()  # type: ignore[attr-defined]
            say(f"error: {' '.join(text.split())}", err=True)
            raise typer.Exit(BAD_USAGE) from None
