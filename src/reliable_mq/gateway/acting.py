"""For whom something is asked of brokers: it is kept beside the task that asks. Values only."""

from contextvars import ContextVar
from typing import NamedTuple


class Acting(NamedTuple):
    """A client: its address without the port, and the user who has signed its call; None: nobody.

    The gateway knows nothing of users: whoever asks brokers signs as this one.
    """

    host: str
    user: object = None


ACTING: ContextVar[Acting | None] = ContextVar("acting", default=None)
"""None: the endpoint asks for itself."""
