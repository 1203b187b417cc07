"""Configuration files with unsaved changes, and the callbacks that wait for a save.

Receives the paths of changed tables. Returns texts to write. Does not know their content. A text is
made when the write begins, not when its table changes. One write is under way at a time, so on a
slow disk more changes share one write. Thousands of callbacks may wait for it, so they are called a
few at a time.
"""

from collections import deque
from collections.abc import Callable

from reliable_mq.broker_core.store.disk import FileText

_Dump = Callable[[], FileText]
_Act = Callable[[], None]
_ACTS_AT_ONCE = 64


class ConfigFiles:
    """Changed files by path, each with the function that makes its text.

    Attributes:
        on_change: called with the path of each table that changes.

    Invariant F2: a waiting callback is called after a write whose text was made after the change.
    Exception: the text of the offsets may be made earlier, because nothing waits for it.
    """

    def __init__(self) -> None:
        self.changed: dict[str, _Dump] = {}  # what is not being written
        self._waiting: list[_Act] = []
        self._under_way: dict[str, _Dump] = {}
        self._waiting_under_way: list[_Act] = []
        self.on_change: Callable[[str], None] = lambda _path: None
        self._due: deque[_Act] = deque()  # their changes are on the medium

    @property
    def has_due(self) -> bool:
        """Whether callbacks are left for `call_some`."""
        return bool(self._due)

    @property
    def is_under_way(self) -> bool:
        """Whether files are being written."""
        return bool(self._under_way)

    def change(self, path: str, dump: _Dump, *, is_first: bool = False) -> None:
        """Note a change of a table; its file is written soon, and first if `is_first`."""
        if is_first:
            self.changed.pop(path, None)
            self.changed = {path: dump, **self.changed}
        else:
            self.changed[path] = dump
        self.on_change(path)

    def when_saved(self, act: _Act) -> None:
        """Have `act` called when all changes up to now are on the medium; at once if they are."""
        if self.changed:
            self._waiting.append(act)
        elif self._under_way:
            self._waiting_under_way.append(act)
        elif self._due:
            self._due.append(act)
        else:
            act()

    def take_texts(self) -> dict[str, FileText]:
        """Return the texts to write now, by path; empty while a write is under way."""
        if not self.changed or self._under_way:
            return {}
        self._under_way, self.changed = self.changed, {}
        self._waiting_under_way, self._waiting = self._waiting, []
        return {path: dump() for path, dump in self._under_way.items()}

    def saved(self) -> None:
        """Note that the texts of the last `take_texts` are on the medium; see `call_some`, too."""
        self._under_way = {}
        self._due += self._waiting_under_way
        self._waiting_under_way = []
        self.call_some()

    def call_some(self) -> None:
        """Call the next callbacks whose changes are on the medium."""
        for _ in range(min(_ACTS_AT_ONCE, len(self._due))):
            self._due.popleft()()

    def take_rest(self) -> dict[str, FileText]:
        """Return all texts that may not be on the medium; no callback is called any more."""
        rest = {**self._under_way, **self.changed}
        self._under_way, self.changed = {}, {}
        return {path: dump() for path, dump in rest.items()}
