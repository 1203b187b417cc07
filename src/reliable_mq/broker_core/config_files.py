"""The configuration files that are to be written, and who waits until they are.

Receives which table changed; hands on texts, and says when they are on the medium; refuses to know
what stands in them. A text is made when it leaves, not when its table changes, and one write is
under way at a time: the slower the disk, the more changes share the next.
"""

from collections.abc import Callable

_Dump = Callable[[], str]
_Act = Callable[[], None]


class ConfigFiles:
    """Files by path, with what makes their text.

    Invariant F2: whoever waits is let go by a write whose text was made after the change. The text
    of the offsets may have been made before; nobody waits for it.
    """

    def __init__(self) -> None:
        self._changed: dict[str, _Dump] = {}
        self._waiting: list[_Act] = []
        self._under_way: dict[str, _Dump] = {}
        self._waiting_under_way: list[_Act] = []

    @property
    def is_changed(self) -> bool:
        """Whether a table changed that is not being written."""
        return bool(self._changed)

    @property
    def is_under_way(self) -> bool:
        """Whether files are being written."""
        return bool(self._under_way)

    def change(self, path: str, dump: _Dump, *, is_first: bool = False) -> None:
        """Note that a table changed; its file is written soon, before the others if `is_first`."""
        if is_first:
            self._changed.pop(path, None)
            self._changed = {path: dump, **self._changed}
        else:
            self._changed[path] = dump

    def when_saved(self, act: _Act) -> None:
        """Call `act` when all that changed up to now is on the medium; now, if it is."""
        if self._changed:
            self._waiting.append(act)
        elif self._under_way:
            self._waiting_under_way.append(act)
        else:
            act()

    def take(self) -> dict[str, str]:
        """Return the texts to write now, by path; none while others are being written."""
        if not self._changed or self._under_way:
            return {}
        self._under_way, self._changed = self._changed, {}
        self._waiting_under_way, self._waiting = self._waiting, []
        return {path: dump() for path, dump in self._under_way.items()}

    def saved(self) -> None:
        """Note that what was taken last is on the medium."""
        self._under_way = {}
        acts, self._waiting_under_way = self._waiting_under_way, []
        for act in acts:
            act()

    def take_rest(self) -> dict[str, str]:
        """Return all texts that are not known to be on the medium; nobody waits any more."""
        rest = {**self._under_way, **self._changed}
        self._under_way, self._changed = {}, {}
        return {path: dump() for path, dump in rest.items()}
