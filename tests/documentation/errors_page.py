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

TO_DO = {
    "ReliableMQError": "catch this to catch every error of the package",
    "UsageError": "change the call as the text says",
    "ConfigurationError": "change the setting that the text names",
    "ForkedClient": "make a new client in the child process",
    "ApplicationBroken": "mend your module; its own traceback is printed",
    "MessageRefused": "change the message as the text says; the transaction can go on",
    "NoTimers": "update the broker, or send without a time",
    "CallRefused": "see the three below",
    "KeyInvalid": "give a text or a whole number that is not empty",
    "KeyReused": "take a new key for another request",
    "CallRunning": "try again after `retry_after` seconds",
    "Unavailable": "try again; if it stays, look whether the other side runs",
    "ConnectionLost": "try again; the request may have taken effect",
    "RequestTimeout": "try again; the request may have taken effect",
    "ReplyTimeout": "look whether a consumer runs; the request is stored",
    "TooManyInFlight": "send less at once, or raise `in_flight_count_max`",
    "NotSent": "send it again after the message before it",
    "HalfRolledBack": "run the whole transaction again",
    "NoRoute": "look at the address and the topic; a broker may not be registered yet",
    "RemoteError": "read `code` and `remark`",
    "BrokerBusy": "try again in a moment, and look at the broker's disk",
    "NotPermitted": "ask for the permission, or correct account and certificates",
    "NotFound": "correct the name, or create it",
    "FoundNowhere": "correct the name, or create it",
    "Refused": "change the request as the text says",
    "WrongPeer": "give the address of a name server, as the text says",
    "ProtocolError": "look who answers at this address",
    "FrameError": "nothing: a new connection is made",
    "RecordError": "look at the file that the text names",
    "LeaseLost": "handle faster, or ask for a longer lease; the message comes again",
    "AddressRefused": "choose another port or address",
    "StoreError": "look at the folder that the text names",
    "StoreInUse": "end the other process, or take another folder",
    "StoreCorrupt": "restore the file, or begin with an empty folder: the stubs are sent again",
    "FormerMaster": "start it with `brokerRole=SLAVE` and a `brokerId` of its own",
    "LogsDiffer": "decide which log is right; the text names the offset and the command",
    "ReplicationError": "make both alike, or give the slave an empty store; see the text",
    "InvariantBroken": "report it, please",
}
"""What a person does about each error."""

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
        fault, _, _ = each.text.partition("; ")
        is_fault = fault in {"yours", "theirs", "ours", "yours or theirs"}
        rows.append(
            [
                code(each.name),
                ", ".join(code(parent.__name__) for parent in kind.__bases__[:1]),
                fault if is_fault else _fault_of(each, found),
                "yes" if kind.retryable else "no",
                as_sentence(summary(kind).split("\n\n")[0]),
                as_sentence(TO_DO[each.name]),
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
