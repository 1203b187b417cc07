"""Which entries of an audit are wanted: those of a table, or lines of a broker's file. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions that entries must meet, all of them.

    Attributes:
        since: written at or after this time.
        until: written before this time.
        actor: by exactly this person or user; "": by anybody.
        action: the action has this text, in any case.
        text: the message id, the detail or the address has this text, in any case.
        is_changed: only what changed something; False: only what changed nothing.
    """

    since: datetime | None = None
    until: datetime | None = None
    actor: str = ""
    action: str = ""
    text: str = ""
    is_changed: bool | None = None

    def takes(self, row: Mapping[str, Any], line: str) -> bool:
        """Whether an entry of a file is wanted.

        Args:
            row: its fields; `create_date` is a time with a zone.
            line: the whole line.
        """
        return (
            (self.since is None or row["create_date"] >= self.since)
            and (self.until is None or row["create_date"] < self.until)
            and (not self.actor or row["actor"] == self.actor)
            and self.action.lower() in row["action"].lower()
            and self.text.lower() in line.lower()
            and self.is_changed in (None, bool(row["changed"]))
        )
