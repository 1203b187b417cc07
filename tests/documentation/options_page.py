"""The reference page of options: those of declarations, and those of a message to send."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

from tests.documentation.declared import (
    as_sentence,
    code,
    parameters,
    section,
    summary,
    table,
    type_text,
)

from reliable_mq import Consumed, Reject, ReliableMQ, Retry, Transaction
from reliable_mq.outbox.message_options import ManyOptions, StubOptions

HEAD = """# Options

What `mq.topic`, `@mq.consumer`, `mq.transaction`, `tx.send` and `@mq.idempotent` accept. This page
is made from the code. An option that does not exist is refused, with the name that was meant.

"""

_OPTIONS = ("option", "type", "default", "what it does")
DECLARATIONS: tuple[tuple[str, Callable[..., Any]], ...] = (
    ("`@mq.consumer(topic, …)`", ReliableMQ.consumer),
    ("`mq.topic(name, …)`", ReliableMQ.topic),
    ("`@mq.idempotent(…)`", ReliableMQ.idempotent),
    ("`mq.transaction(…)`", ReliableMQ.transaction),
)


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    for title, function in DECLARATIONS:
        parts.append(
            f"## {title}\n\n{_text(function)}\n\n{_parameters(function)}{_raises(function)}"
        )
    send, many = Transaction.send, Transaction.send_many
    parts.append(
        f"## `tx.send(topic, payload, …)`\n\n{_text(send)}\n\n"
        f"{_sent(StubOptions, section(send, 'Args'))}{_raises(send)}"
    )
    parts.append(
        f"## `tx.send_many(topic, payloads, …)`\n\n{_text(many)}\n\n"
        "Its options are those of `tx.send`. "
        f"A function of the payload is accepted for {_functions(ManyOptions)}.\n{_raises(many)}"
    )
    parts.append("## What a handler says\n\n" + _outcomes())
    return "\n".join(parts)


def _text(function: Callable[..., Any]) -> str:
    return "\n\n".join(" ".join(each.split()) for each in summary(function).split("\n\n"))


def _parameters(function: Callable[..., Any]) -> str:
    hints, texts = get_type_hints(function), section(function, "Args")
    rows = [
        [
            code(name),
            code(type_text(hints.get(name, ""))),
            _default(each),
            as_sentence(texts.get(name, "")),
        ]
        for name, each in parameters(function).items()
    ]
    return table(_OPTIONS, rows)


def _default(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return "needed"
    value = parameter.default
    return code(f'"{value}"' if isinstance(value, str) else repr(value).removeprefix("datetime."))


def _sent(options: type, texts: Mapping[str, str]) -> str:
    hints = get_type_hints(options)
    rows = [["`topic`", "`str`", "needed", as_sentence(texts["topic"])]]
    rows.append(["`payload`", "", "needed", as_sentence(texts["payload"])])
    rows += [
        [code(name), code(type_text(hints[name])), "", as_sentence(texts[name])]
        for name in texts
        if name in hints
    ]
    return table(_OPTIONS, rows)


def _functions(options: type) -> str:
    hints = get_type_hints(options)
    found = [name for name, hint in hints.items() if "Callable" in str(hint) or hint is object]
    return ", ".join(map(code, found))


def _raises(function: Callable[..., Any]) -> str:
    rows = [[code(name), as_sentence(text)] for name, text in section(function, "Raises").items()]
    return f"\n{table(('raises', 'when'), rows)}" if rows else ""


def _outcomes() -> str:
    rows = [
        [code(each.__name__), _text(each).split("\n\n")[0]] for each in (Consumed, Retry, Reject)
    ]
    return table(("returned or raised", "what happens"), rows)
