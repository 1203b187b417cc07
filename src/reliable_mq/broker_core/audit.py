"""The audit of a broker: who asked for a change, from where, of what, and what came of it.

Receives a request, the values that it may change before and after it, and its answer. Returns lines
of JSON for the file of the audit. It knows no request code: `requests.audited` does.

The fields are those of the table `rmq_audit` where they mean the same. What a peer sends is cut,
and refused requests have a limit: nobody without rights can write the audit full and so push older
lines out.
"""

from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from reliable_mq.access.users import NOBODY
from reliable_mq.decodable import decodable
from reliable_mq.plain_text import cut

PATH = "audit/audit.log"
REFUSED_AT_ONCE = 100
REFUSED_PAUSE_MS = 180_000
"""One more may be refused after each pause: 480 a day, so that a flood of months loses no file."""
_TEXT_MAX = 300  # characters of a name or a reason
_NAMES_SIZE_MAX = 4_096  # bytes of JSON of all names
_VALUES_SIZE_MAX = 16_384  # bytes of JSON of the values before, and as many after
_WAITING_MAX = 10_000  # lines; the owner takes them each turn


@decodable
class AuditLine(msgspec.Struct, kw_only=True):
    """One line: a request of an administrator.

    Attributes:
        create_date: when it came, ISO 8601 in UTC.
        actor: the user who signed it; "-": nobody is known.
        address: where it came from, "ip:port".
        action: the name of its request code.
        message_id: the message that it is about; "": no single one.
        run_id: always null; a field of `rmq_audit`.
        changed: 1 if it changed something, else 0.
        result: the name of the answer's code.
        detail: `on`: what it is about. `before`, `after`: the values of that. `why`: the reason of
            a refusal. `claims`: the user whom a request names without proof. `left_out`: how many
            refused requests before it have no line.
    """

    create_date: str
    actor: str
    address: str
    action: str
    message_id: str = ""
    run_id: str | None = None
    changed: int
    result: str
    detail: dict[str, object]


class AuditRecord:
    """Collects the lines of a broker.

    Invariant A3: at most `REFUSED_AT_ONCE` requests that changed nothing have a line, and one more
    after each `REFUSED_PAUSE_MS`; the others are counted in the next line.
    """

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self._room = float(REFUSED_AT_ONCE)  # lines of requests that changed nothing
        self._at_ms = 0
        self._left_out = 0

    def note(
        self,
        *,
        now_ms: int,
        actor: str,
        address: str,
        action: str,
        on: Mapping[str, object],
        seen: tuple[object, object] | None,
        result: str,
        is_done: bool,
        hides: bool = False,
        why: str = "",
        claims: str = "",
    ) -> None:
        """Add the line of one request.

        Args:
            now_ms: when it came.
            actor: the user who signed it, or "-".
            address: "ip:port".
            action: the name of its code.
            on: what it names: topic, group, user and so on.
            seen: the values that it may change, before and after it; None: there are none to show.
            result: the name of the answer's code.
            is_done: whether the answer is not an error.
            hides: whether a change may be one that `seen` does not show.
            why: the text of an error.
            claims: the user whom a request names without proof.
        """
        changed = is_done and (hides or seen is None or seen[0] != seen[1])
        if not changed and not self._may_tell(now_ms):
            return
        detail: dict[str, object] = {"on": _bounded(_short(on), _NAMES_SIZE_MAX)}
        if seen is not None and is_done:  # a refusal has changed none of them
            detail["before"], detail["after"] = map(_bounded, seen)
        if why:
            detail["why"] = cut(why, _TEXT_MAX)
        if claims:
            detail["claims"] = cut(claims, _TEXT_MAX)
        if self._left_out:
            detail["left_out"], self._left_out = self._left_out, 0
        message_id = on.get("message_id", "")
        came = datetime.fromtimestamp(now_ms / 1000, UTC)
        line = AuditLine(
            create_date=came.isoformat(timespec="milliseconds"),
            actor=cut(actor, _TEXT_MAX),
            address=address,
            action=action,
            message_id=cut(str(message_id), _TEXT_MAX),
            changed=int(changed),
            result=result,
            detail=detail,
        )
        if len(self.lines) < _WAITING_MAX:
            self.lines.append(msgspec.json.encode(line))

    def _may_tell(self, now_ms: int) -> bool:
        gained = max(now_ms - self._at_ms, 0) / REFUSED_PAUSE_MS  # none if the clock went back
        self._room, self._at_ms = min(self._room + gained, REFUSED_AT_ONCE), now_ms
        if self._room < 1:
            self._left_out += 1
            return False
        self._room -= 1
        return True

    def take(self) -> list[bytes]:
        """Return the lines since the last call."""
        lines, self.lines = self.lines, []
        return lines


def gap_line(lost: int, now_ms: int) -> bytes:
    """Return the line that stands for lines which could not be written."""
    came = datetime.fromtimestamp(now_ms / 1000, UTC)
    line = AuditLine(
        create_date=came.isoformat(timespec="milliseconds"),
        actor=NOBODY,
        address="",
        action="AUDIT_GAP",
        changed=0,
        result="",
        detail={"lost": lost},
    )
    return msgspec.json.encode(line)


def _short(on: Mapping[str, object]) -> dict[str, object]:
    """Return what a request names, with names of a bounded length."""
    return {
        name: cut(value, _TEXT_MAX)
        if isinstance(value, str)
        else [cut(each, _TEXT_MAX) for each in value]
        if isinstance(value, list)
        else value
        for name, value in on.items()
    }


def _bounded(values: object, size_max: int = _VALUES_SIZE_MAX) -> object:
    """Return values, or their size when they are too large for a line."""
    size = len(msgspec.json.encode(values))
    return values if size <= size_max else {"too_large": size}
