"""The classes of our commands for typer: old names of options, help as wide as the terminal.

Receives the words after a command's name; passes them to typer with the current names of options,
and with an application that was typed as an argument as an option.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

from reliable_mq.cli.saying import say_trouble
from reliable_mq.errors import UsageError
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

OTHERS_COMMANDS: Mapping[str, str] = {
    "beat": "resend",
    "check": "doctor",
    "consume": "run",
    "consumer": "run",
    "consumers": "group",
    "deadletter": "dlq",
    "deadletters": "dlq",
    "health": "doctor",
    "inspect": "group members",
    "lag": "group progress",
    "messages": "message",
    "new": "init",
    "outbox": "stub",
    "purge": "stub void",
    "queues": "topic",
    "relay": "resend",
    "runworker": "run",
    "scheduler": "resend",
    "server": "broker",
    "show": "stub show",
    "start": "dev",
    "status": "doctor",
    "upgrade": "migrate",
    "worker": "run",
    "workers": "run",
}
"""What other tools call a command -> its name here."""

_OTHERS_OPTIONS = {
    "workers": "processes",
    "concurrency": "processes",
    "format": "json",
    "output": "json",
    "using": "database-name",
}
"""What other tools call an option -> its name here, for commands that have it."""

_APP = "--app"
_APPLICATION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
_LEAVE_OUT = ", or leave it out"
_MAY_BE_EMPTY = frozenset({"note"})
"""Options with a text that may have no characters."""
_NAME_FILES = ("DIR", "FILE", "COMMAND")
"""The metavar of an option that may name a file has one of these. Names of files are bytes."""
_NEVER_AN_APPLICATION = frozenset({"topic", "group", "source", "target", "message_ids"})
"""Arguments that have no colon."""

WIDE = 1_000
"""No terminal is wider: its help uses the whole width."""

SETTINGS: dict[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": WIDE,
}


def unusable(error: Any) -> str:
    """Return what is wrong with a command line, and which help to read. Typer's error says it."""
    text = " ".join(error.format_message().split()).replace("Value error, ", "")
    context = getattr(error, "ctx", None)
    where = f"; see {context.command_path} --help" if context is not None else ""
    if name := getattr(error, "option_name", "") if hasattr(error, "possibilities") else "":
        close = _others_option(name, context) or _meant(name, error.possibilities or ())
        text = f"No such option: {name}" + (f". Did you mean {close}?" if close else "")
    if word := _known_elsewhere(text, context):
        text = f"No such command '{word}'. Did you mean '{OTHERS_COMMANDS[word]}'?"
    if context is not None and (word := _shown_one(text, context)):
        text = f"No such command '{word}'. Did you mean '{context.info_name} show {word}'?"
    if text.endswith("?"):  # "No such command 'stbu'. Did you mean 'stub'?"
        return text.replace(". Did you", ": did you") + where.replace("; see", " See")
    return text.removesuffix(".") + where


def _known_elsewhere(text: str, context: Any) -> str:
    """Return the word that other tools have for one of our commands; "": the text names none."""
    found = re.match(r"No such command '([\w-]+)'", text)
    at_root = context is not None and context.parent is None
    word = found[1].lower() if found and at_root else ""
    return word if word in OTHERS_COMMANDS else ""


def _shown_one(text: str, context: Any) -> str:
    """Return the word that names what to show, such as 4711 in `stub 4711`; "": there is none."""
    found = re.fullmatch(r"No such command '([^']+)'\.?", text)
    commands = getattr(context.command, "commands", {})
    is_group = context.parent is not None
    return found[1] if found and is_group and "show" in commands else ""


def _others_option(typed: str, context: Any) -> str:
    """Return our option for a word of other tools; "": this command has none."""
    option = f"--{_OTHERS_OPTIONS.get(typed.lstrip('-'), '')}"
    params = context.command.params if context is not None else ()
    return option if any(option in each.opts for each in params) else ""


def _meant(typed: str, options: Sequence[str]) -> str:
    """Return the option that was meant; "": none is like it. The dashes are alike in all."""
    words = {each.lstrip("-"): each for each in options}
    word = typed.lstrip("-")
    longer = [each for each in words if each.startswith(word)]
    close = longer or get_close_matches(word, words, n=1)
    return words[close[0]] if close else ""


def _empty(param: Any) -> str:
    """Return what is wrong with a word that is empty."""
    wanted = (param.metavar or "").strip("[]")
    if param.param_type_name == "argument":
        given = f"{wanted or param.name.upper()} is empty: give one"
        return given + ("" if param.required else _LEAVE_OUT)
    given = f"{param.opts[0]} is empty: give {wanted or 'a value'}"
    return given + ("" if param.required else _LEAVE_OUT)


def _undecodable(param: Any, word: str) -> str:
    """Return what is wrong with a word that has bytes that are not UTF-8; "": nothing.

    Python keeps such a byte as a half of a character, which no database and no broker takes. The
    word is not repeated: it may be a secret.
    """
    if word.encode("utf-8", "replace") == word.encode("utf-8", "surrogatepass"):
        return ""
    of_type = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    metavar = param.metavar or ""
    is_credential = metavar.startswith("@")
    is_file = of_type is Path or any(each in metavar for each in _NAME_FILES)
    # The output of a reconciliation is a folder or a URI: neither its type nor a metavar says so.
    if (is_file and not is_credential) or param.name == "out":
        return ""
    wanted = metavar.strip("[]") or param.name.upper()
    name = wanted if param.param_type_name == "argument" else param.opts[0]
    return f"{name} has bytes that are not UTF-8: write it in UTF-8"


def _has_one_value(param: Any) -> bool:
    """Return whether a parameter is an option with a value, and not a list of them."""
    return param.param_type_name == "option" and not (
        param.multiple or param.is_flag or param.count
    )


class VerbCommand(TyperCommand):
    """A command that understands the old names of its options, with one warning for each.

    A command with `--app` and without an argument takes the application as an argument, too.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line after its old names were replaced.

        Raises:
            UsageError: what has to be an option was typed as an argument, an option has no effect
                or is given twice, or a word is empty.
        """
        current = self._with_current_names(args)
        words = self._with_application(current)
        if not ctx.resilient_parsing:
            self._refuse_odd_words(ctx, words)
        rest: list[str] = super().parse_args(ctx, words)
        if self._is_typed(ctx, "application", "argument") and self._is_typed(ctx, "table_prefix"):
            raise UsageError(
                "--table-prefix is for --db: the application says its own (setting table_prefix)"
            )
        return rest

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the pieces of the usage line, with the application where it may be typed."""
        pieces: list[str] = super().collect_usage_pieces(ctx)
        return [*pieces, "[MODULE:OBJECT]"] if self._takes_application else pieces

    @property
    def _takes_application(self) -> bool:
        return _APP in self._options() and not self._arguments()

    def _arguments(self) -> list[Any]:
        return [each for each in self.params if each.param_type_name == "argument"]

    def _options(self) -> dict[str, bool]:
        """Return whether each option takes a value, by its name."""
        return {
            name: not getattr(param, "is_flag", False)
            for param in self.params
            for name in (*param.opts, *param.secondary_opts)
            if name.startswith("-")
        }

    def _refuse_odd_words(self, ctx: Any, args: Sequence[str]) -> None:
        """Refuse an empty word, and an option that is given twice but has one value.

        An empty word comes from a variable of a script that is not set. Without a check, an empty
        filter would choose everything, and an empty path this folder. Of two values, one would be
        left out. A word that no database takes is refused before one is asked. The words are those
        that were typed, before any becomes a path or a time.
        """
        typed, _, order = self.make_parser(ctx).parse_args(list(args))
        times = Counter(each.name for each in order if _has_one_value(each))
        for param in self.params:
            if times[param.name] > 1:
                raise UsageError(
                    f"{param.opts[0]} is given {times[param.name]} times: give it once"
                )
            value = typed.get(param.name)
            given = value if isinstance(value, list | tuple) else [value]
            words = [each for each in given if isinstance(each, str)]
            if said := next(filter(None, (_undecodable(param, each) for each in words)), ""):
                raise UsageError(said)
            if param.name not in _MAY_BE_EMPTY and any(not each.strip() for each in words):
                raise UsageError(_empty(param))

    def _is_typed(self, ctx: Any, *names: str) -> bool:
        sources = [ctx.get_parameter_source(name) for name in names if name in ctx.params]
        return any(each is not None and each.name == "COMMANDLINE" for each in sources)

    def _with_application(self, args: Sequence[str]) -> list[str]:
        """Return the words with an application that was typed as an argument as `--app`.

        Raises:
            UsageError: it cannot be an argument here, or two are named.
        """
        takes_value = self._options()
        typed = _places_of_arguments(args, takes_value)
        arguments = self._arguments()
        names = [each.name for each in arguments for _ in range(max(each.nargs, 1))]
        if any(each.nargs < 0 for each in arguments):
            names += [names[-1]] * len(typed)
        for number, place in enumerate(typed):
            word, name = args[place], names[number] if number < len(names) else ""
            if name and name not in _NEVER_AN_APPLICATION:
                continue
            if not name and "--store" in takes_value and _APP not in takes_value:
                raise UsageError(f"{word}: the store is an option here: write --store {word}")
            if _APP not in takes_value or not _APPLICATION.fullmatch(word):
                continue
            if "argument" in names:
                first = args[typed[0]]
                raise UsageError(f"two applications are named: {first} and {word}; give one")
            if arguments:
                raise UsageError(f"{word}: the application is an option here: write --app {word}")
            if any(each == _APP or each.startswith(f"{_APP}=") for each in args):
                raise UsageError(f"two applications are named: {word} and one by --app; give one")
            return [*args[:place], _APP, *args[place:]]
        return list(args)

    def _with_current_names(self, args: Sequence[str]) -> list[str]:
        takes_value = self._options()
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


def _places_of_arguments(args: Sequence[str], takes_value: Mapping[str, bool]) -> list[int]:
    """Return the places of the words that are neither options nor their values."""
    found, is_value, is_ended = list[int](), False, False
    for place, word in enumerate(args):
        if is_value:
            is_value = False
        elif is_ended or not word.startswith("-") or word == "-":
            found.append(place)
        else:
            is_ended = word == "--"
            name, sign, _ = word.partition("=")
            is_value = not sign and takes_value.get(name, False)
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
