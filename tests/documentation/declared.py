"""What the code declares about itself: comments of fields, sections of docstrings, tables in text.

Receives classes and functions. Returns words for pages. Knows no page.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Example|Examples):$", re.MULTILINE)
_ENTRY = re.compile(r"^    (\*{0,2}\w+): ", re.MULTILINE)


def field_comments(kind: type) -> dict[str, str]:
    """Return the words of the `#:` comment above each field of a class; "" if it has none."""
    lines = textwrap.dedent(inspect.getsource(kind)).splitlines()
    body = ast.parse("\n".join(lines)).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        node.target.id: _comment_above(lines, node.lineno - 1)
        for node in body.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def _comment_above(lines: Sequence[str], at: int) -> str:
    words: list[str] = []
    while at > 0 and lines[at - 1].strip().startswith("#:"):
        at -= 1
        words.insert(0, lines[at].strip().removeprefix("#:").strip())
    return " ".join(words)


def summary(thing: Any) -> str:
    """Return the text of a docstring before its first section, as one paragraph for each."""
    text = inspect.getdoc(thing) or ""
    return _SECTION.split(text, maxsplit=1)[0].strip()


def first_sentence(thing: Any) -> str:
    """Return the first sentence of a docstring, on one line."""
    text = " ".join(summary(thing).split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0]


def section(thing: Any, title: str) -> dict[str, str]:
    """Return the entries of one section of a docstring ("Args", "Raises"): name to text."""
    text = inspect.getdoc(thing) or ""
    parts = _SECTION.split(text)
    body = next((parts[at + 1] for at in range(1, len(parts), 2) if parts[at] == title), "")
    body = re.split(r"\n(?=\S)", body, maxsplit=1)[0]
    pieces = _ENTRY.split(body)
    return {
        name: " ".join(words.split())
        for name, words in zip(pieces[1::2], pieces[2::2], strict=True)
    }


def parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function without `self`."""
    found = inspect.signature(function).parameters
    return {name: each for name, each in found.items() if name != "self"}


def type_text(annotation: Any) -> str:
    """Return an annotation as a person would write it."""
    if annotation is inspect.Parameter.empty:
        return ""
    if isinstance(annotation, type) and not hasattr(annotation, "__args__"):
        return annotation.__name__
    if get_origin(annotation) is Literal:
        return " or ".join(f'"{each}"' for each in get_args(annotation))
    text = annotation if isinstance(annotation, str) else str(annotation)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Return a text that stays inside one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: object) -> str:
    """Return a text as code; an empty one stays empty."""
    shown = str(text)
    return f"`{shown}`" if shown else ""


def as_sentence(text: str) -> str:
    """Return a comment as a sentence: with a capital and a full stop."""
    shown = text[:1].upper() + text[1:] if text[:1].islower() else text
    return shown if not shown or shown.endswith((".", ":", "!", "?", "…")) else f"{shown}."
