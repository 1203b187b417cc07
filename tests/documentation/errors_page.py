"""The reference page of errors, from the tree in the head of `reliable_mq.errors`."""

import inspect
import re
from typing import NamedTuple

from tests.documentation.declared import as_sentence, code, summary, table

from reliable_mq import errors

HEAD = """# Errors

`from reliable_mq.errors import …`. Every error of the package is a `ReliableMQError`.

- *Fault* says who must act: "yours" is the code or the configuration that called, "theirs" is the
  other side, "ours" is this package.
- *Try again* says whether the same call may succeed later (`retryable` of the class).
- The text of an error says which value was wrong and what to do.
- A command prints the text as one line, see [exit codes](exit_codes.md).

"""

TAIL = """
`code` and `remark` of a `RemoteError` are the broker's own. [The client](client.md#errors) lists
the codes.

This page is made from `reliable_mq.errors`.
"""

_LINE = re.compile(r"^    [ │├└─]*(?P<name>[A-Z]\w+)(?: {2,}(?P<text>.+))?$", re.MULTILINE)


class Drawn(NamedTuple):
    """One line of the tree."""

    name: str
    text: str


def drawn() -> list[Drawn]:
    """Return the lines of the tree in the head of the module."""
    head = errors.__doc__ or ""
    return [Drawn(found["name"], (found["text"] or "").strip()) for found in _LINE.finditer(head)]


def classes() -> dict[str, type[errors.ReliableMQError]]:
    """Return all error classes of the module, by name."""
    return {
        name: each
        for name, each in vars(errors).items()
        if inspect.isclass(each) and issubclass(each, errors.ReliableMQError)
    }


def page() -> str:
    """Return the page: one row for each class, in the order of the tree."""
    found = classes()
    rows = []
    for each in drawn():
        kind = found[each.name]
        fault, _, action = each.text.partition("; ")
        is_fault = fault in {"yours", "theirs", "ours", "yours or theirs"}
        rows.append(
            [
                code(each.name),
                ", ".join(code(parent.__name__) for parent in kind.__bases__[:1]),
                fault if is_fault else _fault_of(each, found),
                "yes" if kind.retryable else "no",
                as_sentence(summary(kind).split("\n\n")[0]),
                as_sentence(action if is_fault else each.text),
            ]
        )
    columns = ("class", "is a", "fault", "try again", "raised when", "what to do")
    return HEAD + table(columns, rows) + TAIL


def _fault_of(each: Drawn, found: dict[str, type[errors.ReliableMQError]]) -> str:
    """Return the fault that a line leaves to the class above it."""
    by_name = {line.name: line.text.partition(";")[0] for line in drawn()}
    for parent in found[each.name].__mro__[1:]:
        fault = by_name.get(parent.__name__, "")
        if fault in {"yours", "theirs", "ours"}:
            return fault
    return "by its text"
