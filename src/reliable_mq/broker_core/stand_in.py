"""What a slave does in the place of its master: it delivers to other masters, and locks queues.

Receives the decision that it stands in, and that the master is back. A master that comes back tells
its slaves where it is (request 906), and then asks for their progress. So its answer waits until
the last delivery is known.
"""

from collections.abc import Callable

from reliable_mq.broker_core.delivery.elsewhere import DeliveriesElsewhere


class StandIn:
    """The standing in of one slave; nothing of it happens at a master.

    Attributes:
        knows_progress: whether the progress of this store is that of its master. It is not, if the
            store was a master's before: deliveries that it knows may have been cut from its log.
        is_acting: whether it stands in now.
        deliveries: what it delivers; None: nothing.
        on_notice: called when a name server says that something has changed.
        on_master: called with the address for slaves, and the address, of a master that is back.
    """

    def __init__(self) -> None:
        self.is_acting = False
        self.knows_progress = False
        self.deliveries: DeliveriesElsewhere | None = None
        self.on_master: Callable[[str, str], None] = lambda _ha_address, _address: None
        self.on_notice: Callable[[], None] = lambda: None
        self._count = 0  # messages of earlier times
        self._ended: list[DeliveriesElsewhere] = []  # with messages that are on their way
        self._when_idle: list[Callable[[], None]] = []

    def begin(self, deliveries: DeliveriesElsewhere | None) -> None:
        """Stand in from now on."""
        self.is_acting = True
        self.deliveries = deliveries

    def end(self) -> None:
        """Deliver nothing more. What is on its way counts when it is answered."""
        self.is_acting = False
        if self.deliveries is not None:
            self._ended.append(self.deliveries)
        self.deliveries = None
        self.settle()

    @property
    def delivered(self) -> int:
        """Messages that other masters have got since the start."""
        current = [self.deliveries] if self.deliveries is not None else []
        return self._count + sum(each.accepted for each in (*self._ended, *current))

    def when_idle(self, call: Callable[[], None]) -> None:
        """Call when no message is on its way to another master."""
        self._when_idle.append(call)
        self.settle()

    def settle(self) -> None:
        """Make the calls that wait, if nothing is on its way any more."""
        self._count += sum(each.accepted for each in self._ended if not each.under_way)
        self._ended = [each for each in self._ended if each.under_way]
        if not self._ended and self.deliveries is None:
            calls, self._when_idle = self._when_idle, []
            for call in calls:
                call()
