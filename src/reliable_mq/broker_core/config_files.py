"""Configuration files with unsaved changes, and the callbacks that wait for a save.

Receives the paths of changed tables. Returns texts to write. Does not know their content. A text is
made when the write begins, not when its table changes. One write is under way at a time, so on a
slow disk more changes share one write.
"""

from collections.abc import Callable

from reliable_mq.broker_core.store.disk import FileText

_Dump = Callable[[], FileText]
_Act = Callable[[], None]


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
        """Call `act` when all changes up to now are on the medium; at once if there are none."""
        if self.changed:
            self._waiting.append(act)
        elif self._under_way:
            self._waiting_under_way.append(act)
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
        """Note that the texts of the last `take_texts` are on the medium."""
        self._under_way = {}
        acts, self._waiting_under_way = self._waiting_under_way, []
        for act in acts:
            act()

    def take_rest(self) -> dict[str, FileText]:
        """Return all texts that may not be on the medium; no callback is called any more."""
        rest = {**self._under_way, **self.changed}
        self._under_way, self.changed = {}, {}
        return {path: dump() for path, dump in rest.items()}
