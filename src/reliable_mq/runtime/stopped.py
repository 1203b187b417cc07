"""What ends a loop that runs for as long as its process; a `threading.Event` is one."""

from typing import Protocol


class StopSignal(Protocol):
    """Says that a loop is to end."""

    def is_set(self) -> bool:
        """Say whether the loop is to end."""
        ...

    def wait(self, timeout: float) -> bool:
        """Wait until the loop is to end, `timeout` seconds at most; return whether it is to end."""
        ...
