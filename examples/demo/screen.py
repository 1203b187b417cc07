"""What the demo shows: live bars on a terminal, plain lines when piped."""

import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from examples.demo.counts import OrderProgress as Counts

PLAIN_SECONDS = 5.0
BARS = {
    "orders": "orders committed",
    "sent": "messages sent",
    "payments": "payments written",
    "loyalty": "points added",
    "confirmed": "messages confirmed",
}


class Screen:
    """Tells the story as it happens. `seconds` since the start stand before every line."""

    def __init__(self) -> None:
        self.console = Console(highlight=False, soft_wrap=True)
        self._start = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def headline(self, text: str) -> None:
        self.console.print()
        self.console.print(f"[bold]{text}[/bold]")

    def line(self, text: str, style: str = "") -> None:
        """Print one line of the story, with its time."""
        self.console.print(f"{self.seconds:6.1f} s  {text}", style=style, markup=False)

    def plain(self, text: str) -> None:
        """Print text as it is, over as many lines as it has."""
        self.console.print(text, markup=False)

    def table(self, title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        table = Table(title=title, title_justify="left", title_style="bold")
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*map(str, row))
        self.console.print(table)

    def bars(self, orders: int) -> "Bars":
        """Return a context that shows progress towards so many orders."""
        return Bars(self, orders)


class Bars:
    """One bar for each station that an order passes; on a pipe, a line every five seconds."""

    def __init__(self, screen: Screen, orders: int) -> None:
        self._screen = screen
        self._orders = orders
        self._next_plain = 0.0
        self._tasks: dict[str, TaskID] = {}
        self._progress = Progress(
            TextColumn("          {task.description:<22}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            console=screen.console,
            transient=True,
            disable=not screen.console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        for name, label in BARS.items():
            self._tasks[name] = self._progress.add_task(label, total=self._orders)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def show(self, counts: Counts) -> None:
        for name, task in self._tasks.items():
            self._progress.update(task, completed=getattr(counts, name))
        if self._screen.console.is_terminal or self._screen.seconds < self._next_plain:
            return
        self._next_plain = self._screen.seconds + PLAIN_SECONDS
        shown = (f"{label} {getattr(counts, name)}" for name, label in BARS.items())
        self._screen.line(", ".join(shown))
