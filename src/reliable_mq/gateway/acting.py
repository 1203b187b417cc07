"""For whom something is asked of brokers: it is kept beside the task that asks. Values only."""

from contextvars import ContextVar
from typing import NamedTuple


class Acting(NamedTuple):
    """A client: its address without the port, and the user who has signed its call; None: nobody.

    The gateway knows nothing of users but their names: whoever asks brokers signs as this one.
    """

    host: str
    user: object = None
    name: str = ""

    @property
    def payer(self) -> tuple[str, str]:
        """For whom it counts what it takes: its user, or its address if nobody has signed."""
        return (self.name, "") if self.name else ("", self.host)


ACTING: ContextVar[Acting | None] = ContextVar("acting", default=None)
"""None: the endpoint asks for itself."""


def acting_name() -> str:
    """Return the user for whom the running task works; "": nobody has signed."""
    acting = ACTING.get()
    return acting.name if acting is not None else ""


def payer() -> tuple[str, str]:
    """Return for whom it counts what the running task takes."""
    acting = ACTING.get()
    return acting.payer if acting is not None else ("", "")
