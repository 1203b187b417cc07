"""The classes of our commands for typer: old names of options, help as wide as the terminal.

Receives the words after a command's name; passes them to typer with the current names of options.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

from reliable_mq.cli.saying import say_trouble
from reliable_mq.old_names import now_called

F = TypeVar("F", bound=Callable[..., Any])

OLD_OPTIONS: Mapping[str, str] = {
    "--all": "--also-settled",
    "--at": "--broker-name",
    "--count": "--limit",
    "--database": "--database-name",
    "--prefix": "--table-prefix",
    "--since": "--from-revision",
}
"""Old name -> new name. It is used by each command that has the new one and not the old one.

Never remove a row: an old command line keeps working.
"""

WIDE = 1_000
"""No terminal is wider: its help uses the whole width."""

SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": WIDE,
}


class VerbCommand(TyperCommand):
    """A command that understands the old names of its options, with one warning for each."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line after its old names were replaced."""
        return super().parse_args(ctx, self._with_current_names(args))

    def _with_current_names(self, args: Sequence[str]) -> list[str]:
        takes_value = {
            name: not getattr(param, "is_flag", False)
            for param in self.params
            for name in (*param.opts, *param.secondary_opts)
            if name.startswith("-")
        }
        old_names = {
            old: new
            for old, new in OLD_OPTIONS.items()
            if new in takes_value and old not in takes_value
        }
        found, warned, is_value, is_ended = list(args), set[str](), False, False
        for place, word in enumerate(args):
            if is_value or is_ended:
                is_value = False
                continue
            name, sign, value = word.partition("=")
            is_ended = word == "--"
            new = old_names.get(name, name)
            if new != name:
                found[place] = f"{new}{sign}{value}"
                if name not in warned:
                    say_trouble("warning", now_called(name, new))
                warned.add(name)
            is_value = not sign and takes_value.get(new, False)
        return found


class VerbCommands(typer.Typer):
    """A group of commands, each of them a `VerbCommand`."""

    def __init__(self, help_line: str) -> None:
        super().__init__(no_args_is_help=True, help=help_line, rich_markup_mode=None)

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **more: Any
    ) -> Callable[[F], F]:
        """Register a function as a command."""
        return super().command(name, cls=cls or VerbCommand, **more)
