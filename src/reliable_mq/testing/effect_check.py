"""Does the same thing under each fault, and fails unless it has exactly one effect each time.

Receives a world and what is done in it. Returns the names of the faults that were tried.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from reliable_mq.testing.crash_switch import CrashSwitch
from reliable_mq.testing.faults import Faults
from reliable_mq.testing.memory_leases import LeaseTable

Dying = Callable[[str], AbstractContextManager[CrashSwitch]]
"""Kills the process at the step of this name; it lives again after the block."""


class FaultyWorld(Protocol):
    """What a check needs of a `MessageWorld`."""

    @property
    def faults(self) -> Faults:
        """What goes wrong next."""

    @property
    def leases(self) -> LeaseTable | None:
        """What Redis would remember; None without it."""

    def deliver(self) -> int:
        """Send what was committed and let consumers handle it, until nothing moves."""

    def settle(self) -> None:
        """Let time pass until every stub is confirmed, voided or given up."""


class EffectCheck:
    """One check of `MessageWorld.assert_effect_once`.

    Args:
        world: where it is done.
        act: does it once more, and returns what `effects` needs to know which one.
        effects: how many effects there are of what `act` returned.
    """

    def __init__(
        self, world: FaultyWorld, act: Callable[[], Any], effects: Callable[[Any], int]
    ) -> None:
        self._world = world
        self._act = act
        self._effects = effects

    def run(self, dying: Dying | None) -> list[str]:
        """Try every fault, then a death at every step; return their names.

        Args:
            dying: kills the process; None: it does not die.

        Raises:
            AssertionError: names the fault and how many effects there were.
        """
        tried = []
        for name, begin in self._fault_actions().items():
            subject = self._act()
            begin()
            self._world.deliver()
            self._world.faults.clear()
            self._check_once(name, subject)
            tried.append(name)
        if dying is not None:
            tried += self._die_everywhere(dying)
        return tried

    def _die_everywhere(self, dying: Dying) -> list[str]:
        """Die at every step that is known, while lives tell of new ones; return their names."""
        tried: dict[str, None] = {}
        waiting = [""]  # no step has this name: the first run tells which there are
        while waiting:
            subject = self._act()
            with dying(waiting[0]) as switch:
                self._world.deliver()
            name = f"killed at {waiting[0]}" if switch.dead else "nobody was killed"
            self._check_once(name, subject)
            tried[waiting.pop(0)] = None
            waiting += [
                each for each in dict.fromkeys(switch.names) if each not in {*tried, *waiting}
            ]
        return [f"killed at {step}" for step in tried if step]

    def _fault_actions(self) -> dict[str, Callable[[], None]]:
        faults, leases = self._world.faults, self._world.leases

        def leave_broker() -> None:
            faults.is_broker_away = True

        found: dict[str, Callable[[], None]] = {
            "nothing goes wrong": lambda: None,
            "a duplicate": faults.duplicate,
            "a lost acknowledgement": faults.lose_acknowledgement,
            "a lost reply": faults.lose_reply,
            "no broker": leave_broker,
        }
        if leases is not None:
            found["leases forgotten"] = leases.flush
        return found

    def _check_once(self, fault: str, subject: Any) -> None:
        self._world.settle()
        count = self._effects(subject)
        if count != 1:
            raise AssertionError(f"{fault}: {count} effects of {subject!r} instead of one")
