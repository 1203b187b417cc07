"""What the pages say is examined: Python and command lines.

Receives the text of a page. Returns faults as lines. Runs nothing of what a page shows.
"""

import ast
import inspect
import re
import shlex
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_type_hints

import typer.main

from reliable_mq import ReliableMQ
from reliable_mq.cli.main import VERBS, build_app
from reliable_mq.outbox.message_options import ManyOptions, StubOptions
from reliable_mq.settings import Settings

_FENCE = re.compile(r"^( *)```(\w+)[^\n]*\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`(reliable-mq [^`]+)`")
_SNIPPET = re.compile(r"^ *--8<--", re.MULTILINE)
_VARIABLE = re.compile(r"\bRELIABLE_MQ_([A-Z_]+)")
_TARGET = re.compile(r"(?:`|^|\$ )make ([a-z]+)\b", re.MULTILINE)
_MODULE = re.compile(r"\bpython -m ((?:tests|bench|examples)\.[\w.]+)")
OTHER_VARIABLES = {"MYSQLD", "CRASH_LOG", "CRASH_AT", "EVERY_STEP"} | {
    *("APP", "CONSOLE_SECRET", "CONSOLE_OIDC_SECRET", "HEALTH_FILE", "METRICS_HOST"),
    "SECRETS_DIR",
}
"""Variables of tests and of `reliable_mq.testing`, and those of commands only."""
DJANGO_VERBS = {"send", "send_many"}
"""What `DjangoMQ` has more than `ReliableMQ`; it imports in a project of Django only."""
_PROMPT = re.compile(r"^\$ ")
_ASSIGNMENT = re.compile(r"^[A-Z_]+=\S*$")
ROOT = Path(__file__).parents[2]
_SHELLS = {"sh", "bash", "console", "text", "shell"}
_DECLARED = ("transaction", "consumer", "idempotent", "topic", "run", "start", "close")


def blocks(text: str, *languages: str) -> Iterator[str]:
    """Yield the code of a page in some languages, without indentation."""
    for found in _FENCE.finditer(text):
        if found[2] in languages:
            yield textwrap.dedent(found[3])


def python_faults(text: str) -> list[str]:
    """Return what is wrong with the Python of a page: its grammar, and names that are not there."""
    found: list[str] = []
    for program in blocks(text, "python"):
        if _SNIPPET.search(program):
            continue
        try:
            tree = compile(
                program, "page", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            )
        except SyntaxError as error:
            found.append(f"{error}: {program}")
            continue
        for node in ast.walk(tree):
            found += _faults_of(node)
    return found


def _faults_of(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "reliable_mq":
        yield from _import_faults(str(node.module), [each.name for each in node.names])
    elif isinstance(node, ast.Import):
        for each in node.names:
            if each.name.split(".")[0] == "reliable_mq":
                yield from _import_faults(each.name, [])
    elif isinstance(node, ast.Attribute):
        known = {*dir(ReliableMQ), *_attributes(ReliableMQ), *DJANGO_VERBS}
        if _is_name(node.value, "mq") and node.attr not in known:
            yield f"mq.{node.attr}: ReliableMQ has no such name"
    elif isinstance(node, ast.Call):
        allowed = _keywords(node.func)
        if allowed is not None:
            for keyword in node.keywords:
                if keyword.arg is not None and keyword.arg not in allowed:
                    yield f"{ast.unparse(node.func)}: there is no option {keyword.arg}"


def _import_faults(module: str, names: list[str]) -> Iterator[str]:
    if module.startswith("reliable_mq.contrib.django"):  # it imports in a project of Django only
        source = (ROOT / "src" / module.replace(".", "/")).with_suffix("")
        text = "".join(
            path.read_text()
            for path in (source.with_suffix(".py"), *source.glob("*.py"))
            if path.is_file()
        )
        yield from (
            f"from {module} import {name}: there is no such name"
            for name in names
            if not re.search(rf"\b{name}\b", text)
        )
        return
    try:
        made = import_module(module)
    except ImportError as error:
        yield f"import {module}: {error}"
        return
    for name in names:
        if not hasattr(made, name):
            try:
                import_module(f"{module}.{name}")
            except ImportError:
                yield f"from {module} import {name}: there is no such name"


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _attributes(kind: type) -> set[str]:
    """Return what `__init__` sets."""
    return set(re.findall(r"self\.(\w+)(?:: [^=\n]+)? =", inspect.getsource(kind)))


def _keywords(function: ast.expr) -> set[str] | None:
    """Return the options of a call of ours; None: it is no call that we know."""
    if _is_name(function, "ReliableMQ"):
        return set(inspect.signature(ReliableMQ).parameters) | set(Settings.model_fields)
    if isinstance(function, ast.Attribute):
        if _is_name(function.value, "mq") and function.attr in _DECLARED:
            return set(inspect.signature(getattr(ReliableMQ, function.attr)).parameters)
        if _is_name(function.value, "tx"):
            options = {"send": StubOptions, "send_many": ManyOptions}.get(function.attr)
            return None if options is None else set(get_type_hints(options))
    return None


def command_lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the command lines of ours on a page, and whether each must be whole.

    Lines of code blocks are whole. What stands within a sentence may leave arguments out.
    """
    for found in _FENCE.finditer(text):
        if found[2] in _SHELLS:
            yield from ((line, True) for line in _lines(textwrap.dedent(found[3])))
    for line in _INLINE.findall(_FENCE.sub("", text)):
        yield " ".join(line.split()), False


def _lines(block: str) -> Iterator[str]:
    for line in block.replace("\\\n", " ").splitlines():
        stripped = _PROMPT.sub("", line.strip())
        words = stripped.split()
        while words and _ASSIGNMENT.match(words[0]):
            words.pop(0)
        if words and words[0] == "reliable-mq":
            yield stripped


def reference_faults(text: str) -> list[str]:
    """Return the variables, targets of make and modules on a page that do not exist."""
    variables = set(_VARIABLE.findall(text)) - OTHER_VARIABLES
    found = [
        f"RELIABLE_MQ_{each}: no setting has this variable"
        for each in variables
        if not each.endswith("_") and each.lower() not in Settings.model_fields
    ]
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found += [f"make {each}: no such target" for each in set(_TARGET.findall(text)) - targets]
    for module in set(_MODULE.findall(text)):
        path = ROOT / module.replace(".", "/")
        if not path.is_dir() and not path.with_suffix(".py").exists():
            found.append(f"python -m {module}: no such module")
    return found


def command_fault(line: str, *, is_whole: bool) -> str | None:
    """Return what the command line's own parser says against a line; None: it accepts it."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        return f"{line}: {error}"
    while _ASSIGNMENT.match(words[0]):
        words.pop(0)
    words = [f"@{__file__}" if word.startswith("@") else word for word in words[1:]]  # a secret
    for at, word in enumerate(words):
        if word in {"|", "&&", "||", ";", "&", ">", ">>", "2>&1"} or word.startswith(("2>", ">")):
            words = words[:at]
            break
    if not is_whole:
        words = [each for each in words if "|" not in each]
    if not words or words[0].startswith("-") or words[0].isupper() or words[0] == "…":
        return None
    if words[0] not in VERBS:
        return f"{line}: there is no command {words[0]}"
    found = _refusal(line, words, is_whole=is_whole)
    if found and not is_whole and words[-1] == "…":
        return _refusal(line, words[:-2], is_whole=False) and _refusal(
            line, words[:-1], is_whole=False
        )
    return found


def _refusal(line: str, words: list[str], *, is_whole: bool) -> str | None:
    command: Any = typer.main.get_command(build_app(words))
    name, rest, parent = "reliable-mq", words, None
    try:
        while True:
            context = command.make_context(name, list(rest), parent=parent)
            if not hasattr(command, "resolve_command"):
                return None
            rest = [*context._protected_args, *context.args]
            if not rest:
                return None if not is_whole else f"{line}: a command is missing"
            name, command, rest = command.resolve_command(context, rest)
            parent = context
    except typer.Exit:
        return None  # --help
    except Exception as error:  # noqa: BLE001 - what click raises is not typer's to import
        kind = type(error).__name__
        if kind in {"Exit", "NoArgsIsHelpError"}:
            return None
        if kind == "MissingParameter" and not is_whole:
            return None
        return f"{line}: {getattr(error, 'format_message', error.__str__)()}"
