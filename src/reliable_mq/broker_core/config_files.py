"""Configuration files with unsaved changes, and the callbacks that wait for a save.

Receives the paths of changed tables. Returns texts to write. Does not know their content. A text is
made when the write begins, not when its table changes. One write is under way at a time, so on a
slow disk more changes share one write. Thousands of callbacks may wait for it, so they are called a
few at a time. And then the files rest before the next write, if a table was among them.
"""

from collections import deque
from collections.abc import Callable

from reliable_mq.broker_core.store.disk import FileText, RowsText

_Dump = Callable[[], FileText]
_Act = Callable[[], None]
_ACTS_AT_ONCE = 32  # 0.1 to 0.2 ms
_MANY_ACTS = 128  # a new topic has two
_REST = 9  # times as long as the write took
_REST_MS_MIN = 300  # on ext4 each write makes two commits, for which a write of the log may wait
_REST_MS_MAX = 1_000


class ConfigFiles:
    """Changed files by path, each with the function that makes its text.

    Attributes:
        on_change: called with the path of each table that changes.
        due: callbacks for `call_some`; their changes are on the medium.

    Invariant F2: a waiting callback is called after a write whose text was made after the change.
    Exception: the text of the offsets may be made earlier, because nothing waits for it.
    """

    def __init__(self) -> None:
        self.changed: dict[str, _Dump] = {}  # what is not being written
        self._waiting: list[_Act] = []
        self._under_way: dict[str, _Dump] = {}
        self._waiting_under_way: list[_Act] = []
        self.on_change: Callable[[str], None] = lambda _path: None
        self.due: deque[_Act] = deque()
        self._rest_end_ms = 0
        self._has_table = False  # whether a table of many rows is under way

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
        elif self.due:
            self.due.append(act)
        else:
            act()

    def take_texts(self, now_ms: int = 0) -> dict[str, FileText]:
        """Return the texts to write now, by path; empty during a write, and while files rest."""
        is_resting = now_ms < self._rest_end_ms <= now_ms + _REST_MS_MAX  # the clock may go back
        if not self.changed or self._under_way or is_resting:
            return {}
        self._under_way, self.changed = self.changed, {}
        self._waiting_under_way, self._waiting = self._waiting, []
        texts = {path: dump() for path, dump in self._under_way.items()}
        self._has_table = any(isinstance(text, RowsText) for text in texts.values())
        return texts

    def saved(self, now_ms: int = 0, seconds: float = 0.0, *, is_flood: bool = False) -> None:
        """Note that the texts of the last `take_texts` are on the medium; see `call_some`, too.

        If very many callbacks have waited for a table of them, the next write begins after a rest.
        So a flood of topics does not keep the medium busy: each sync of the log would have to wait
        for it. Acknowledgements in order, which are many without a flood, need no table.

        Args:
            now_ms: the time.
            seconds: how long the write took; 0, the default, if nobody is held up: no rest.
            is_flood: whether there is a flood however few callbacks have waited: it has a pace.
        """
        self._under_way = {}
        is_flood = is_flood or len(self._waiting_under_way) >= _MANY_ACTS
        if self._has_table and is_flood:
            rest_ms = max(int(1000 * _REST * seconds), _REST_MS_MIN) if seconds else 0
            self._rest_end_ms = now_ms + min(rest_ms, _REST_MS_MAX)
        self.due += self._waiting_under_way
        self._waiting_under_way = []
        self.call_some()

    def call_some(self) -> None:
        """Call the next callbacks whose changes are on the medium."""
        for _ in range(min(_ACTS_AT_ONCE, len(self.due))):
            self.due.popleft()()

    def end_rest(self) -> None:
        """Let the next write begin at once."""
        self._rest_end_ms = 0

    def take_rest(self) -> dict[str, FileText]:
        """Return all texts that may not be on the medium; no callback is called any more."""
        rest = {**self._under_way, **self.changed}
        self._under_way, self.changed = {}, {}
        return {path: dump() for path, dump in rest.items()}
