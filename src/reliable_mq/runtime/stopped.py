"""The signal that ends an endless loop of a process; a `threading.Event` is one."""

from typing import Protocol


class StopSignal(Protocol):
    """Tells a loop to end."""

    def is_set(self) -> bool:
        """Return whether the loop must end."""
        ...

    def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the signal; return whether the loop must end."""
        ...
