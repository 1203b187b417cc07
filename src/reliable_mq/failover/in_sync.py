"""The replicas in sync: those that the controller may elect when the master is lost.

A message is acknowledged when all of them have it. So whoever is elected has everything that was
acknowledged. Nobody leaves the set before the controller has confirmed it: a master that does not
reach the controller acknowledges nothing that a replica of the set lacks.

A replica joins when it has everything that was acknowledged. From the request on it is waited for,
because the controller may know the new set before the answer arrives.
Source: Apache RocketMQ `AutoSwitchHAService`, with `allAckInSyncStateSet=true`.
"""

from collections.abc import Iterable, Mapping

import msgspec

from reliable_mq.errors import InvariantBroken


class Follower(msgspec.Struct):
    """What a master knows of one replica that is connected.

    Attributes:
        acknowledged: the log offset up to which it has the log.
        caught_up: when it had everything that there was at that time; seconds.
        is_learner: whether it never joins the set.
    """

    acknowledged: int = 0
    caught_up: float = 0.0
    is_learner: bool = False
    _mark: int = -1  # where the log ended, and when
    _marked: float = 0.0

    def look(self, acknowledged: int, log_end: int, now: float) -> None:
        """Note how far it has the log now."""
        self.acknowledged = acknowledged
        if acknowledged >= log_end:
            self.caught_up = now
        elif acknowledged >= self._mark >= 0:
            self.caught_up = max(self.caught_up, self._marked)
        if self._mark < 0 or acknowledged >= self._mark:
            self._mark, self._marked = log_end, now


class InSyncReplicas:
    """The set of one master.

    Invariant K12: whoever the controller may elect is waited for.

    Args:
        own: the number of the master.
        members: the set, as the controller confirmed it.
        epoch: of the set.
    """

    def __init__(self, own: int, members: Iterable[int] = (), epoch: int = 0) -> None:
        self._own = own
        self.members = frozenset(members) | {own}
        self.epoch = epoch
        self.asked: frozenset[int] | None = None  # perhaps the controller's set
        self._is_refused = False  # whether the controller has refused what was asked last
        self.confirmed = 0  # the log offset up to which all of them have the log

    def invariants(self) -> None:
        """K12."""
        if self._own not in self.members or not self.members - {self._own} <= self.awaited:
            raise InvariantBroken(f"K12: of {sorted(self.members)} not all are waited for")

    @property
    def awaited(self) -> frozenset[int]:
        """The replicas that must have a message before it is acknowledged."""
        return (self.members | (self.asked or frozenset())) - {self._own}

    def confirm(self, members: Iterable[int], epoch: int) -> None:
        """Note the set of the controller.

        A request is settled by a set with a newer epoch; after a refusal also by the same one.
        """
        if epoch > self.epoch or (epoch == self.epoch and self._is_refused):
            self.members, self.epoch = frozenset(members) | {self._own}, epoch
            self.asked, self._is_refused = None, False

    def ask(self, members: frozenset[int]) -> None:
        """Note that the controller is asked for another set."""
        self.asked = (self.asked or frozenset()) | members
        self._is_refused = False

    def refused(self) -> None:
        """Note that the controller has refused the request, and that no other one is on its way.

        It may have taken an earlier one whose answer was lost. So all of them are waited for until
        the controller says its set.
        """
        self._is_refused = True

    def confirm_log(self, followers: Mapping[int, Follower], stored: int) -> int:
        """Return how far all of them have the log, which is stored here up to an offset."""
        if self.awaited <= followers.keys():
            ends = (followers[each].acknowledged for each in self.awaited)
            self.confirmed = max(self.confirmed, min(ends, default=stored))
        return self.confirmed

    def wanted(
        self, followers: Mapping[int, Follower], epoch_start: int, now: float, patience: float
    ) -> frozenset[int] | None:
        """Return the set to ask the controller for; None: it has that set.

        Args:
            followers: by their numbers.
            epoch_start: where the master's epoch begins; who lacks that may lack all of it.
            now: seconds.
            patience: seconds for which a replica may lag.
        """
        floor = max(self.confirmed, epoch_start)
        kept = {
            number
            for number, each in followers.items()
            if number in self.members and now - each.caught_up <= patience
        }
        joined = {
            number
            for number, each in followers.items()
            if number not in self.members and not each.is_learner and each.acknowledged >= floor
        }
        wanted = frozenset({self._own} | kept | joined)
        is_known = wanted == self.members and self.asked is None
        return None if is_known else wanted
