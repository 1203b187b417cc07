"""What a broker's core knows of the controller above it."""

from collections.abc import Callable
from typing import Any, NamedTuple


class Controlled(NamedTuple):
    """A broker under a controller.

    Attributes:
        epochs: returns the epochs of the log, as `mqadmin getBrokerEpoch` reads them.
        hint: looks at who the master is, soon.
    """

    epochs: Callable[[], list[dict[str, Any]]]
    hint: Callable[[], None]
