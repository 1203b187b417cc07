"""A broker that goes away and processes that die, by a seed; then calm: when is everything sent?

`python -m tests.resend.after_faults --seeds 100` looks at more seeds than the tests do.
"""

import argparse
import random
import sys
import tempfile
from typing import NamedTuple

from tests.app.kill_switch import Killed
from tests.resend.worlds import World

from reliable_mq.outbox.relay import Relay
from reliable_mq.outbox.stub import Stub
from reliable_mq.resend.scheduler import Scheduler
from reliable_mq.resend.topic_gate import PROBE_LEASE, PROBE_SECONDS_MAX

CHAOS_SECONDS = 90.0
KEYS = ("", "a", "b", "c")
RELAY_LEASE, RESEND_LEASE, BACKLOG_WAIT, LONGEST_WAIT = 5.0, 60.0, 4.0, 20.0
"""As `worlds.World` sets them; the last is the last step of its ladder."""
BOUND = max(PROBE_LEASE, LONGEST_WAIT) + PROBE_SECONDS_MAX + RELAY_LEASE + BACKLOG_WAIT
"""How long after the last fault everything is sent, when nobody has died."""


class Came(NamedTuple):
    """What a run came to: stubs, how many of them were sent late, and the last one's seconds."""

    stubs: int
    late: list[str]
    seconds: float
    out_of_order: list[str]


class Chaos:
    """One topic, a relay and two schedulers, and what happens to them.

    Args:
        world: theirs.
        seed: of what happens.
        kills: schedulers die in the middle of a send, too.
    """

    def __init__(self, world: World, seed: int, *, kills: bool) -> None:
        self._world = world
        self._rng = random.Random(seed)
        self._kills = kills
        self._numbers = dict.fromkeys(KEYS, 0)
        self._written: list[str] = []
        self._lives = 0
        self._schedulers = [self._born() for _ in range(2)]
        self._wakes = [100.0, 100.4]
        self._relay = Relay(
            world.stubs,
            world.broker,
            lambda _count, now, _due: now + 10.0,
            owner="relay",
            lease=RELAY_LEASE,
            arrives_again=lambda topic: world.topics.sent(topic, self._now),
        )
        self._now = 100.0

    def run(self) -> Came:
        """Let things happen, then be calm; see when all was sent."""
        broker, rng = self._world.broker, self._rng
        away_until = 0.0
        while self._now < 100.0 + CHAOS_SECONDS:
            if self._now >= away_until and rng.random() < 0.02:
                away_until = self._now + rng.choice((2.0, 12.0, 30.0, 70.0))
            broker.away = self._now < away_until
            broker.on_send = self._die if self._kills and rng.random() < 0.15 else None
            if rng.random() < 0.5:
                self._write(rng.choice(KEYS), relayed=rng.random() < 0.7)
            self._step()
        broker.away, broker.on_send = False, None
        calm = self._now
        bound = BOUND + (RESEND_LEASE if self._kills else 0.0)
        while set(self._written) - set(broker.sent) and self._now < calm + bound:
            self._step()
        late = sorted(set(self._written) - set(broker.sent))
        return Came(len(self._written), late, self._now - calm, self._out_of_order())

    def _born(self) -> Scheduler:
        self._lives += 1
        return self._world.new_scheduler(f"life-{self._lives}", batch=20, count_max=100)

    def _die(self, _names: object) -> None:
        raise Killed("scheduler")

    def _write(self, key: str, *, relayed: bool) -> None:
        name = f"{key or 'x'}{self._numbers[key]:04}y"
        self._numbers[key] += 1
        self._written.append(name)
        stub = Stub(
            seq=0, message_id=name.ljust(32, "0"), topic="orders", content=b"x", ordering_key=key
        )
        with self._world.database.engine.begin() as connection:
            stubs = self._world.stubs.insert(connection, [stub], "relay", self._now, RELAY_LEASE)
        if relayed:  # else its process died right after the commit
            self._relay.accept(stubs, self._now)

    def _step(self) -> None:
        broker = self._world.broker
        on_send, broker.on_send = broker.on_send, None
        self._relay.run_once(self._now)
        broker.on_send = on_send
        for place, scheduler in enumerate(self._schedulers):
            if self._wakes[place] > self._now:
                continue
            try:
                counts = scheduler.run_once(self._now)
            except Killed:
                self._schedulers[place] = self._born()
                self._wakes[place] = self._now + 5.0
                continue
            soon = 0.0 if counts.is_full or counts.sent else 1.0
            self._wakes[place] = self._now + soon
        self._now += 0.25

    def _out_of_order(self) -> list[str]:
        """Return the keys whose messages did not arrive first in the order of their rows."""
        first = list(dict.fromkeys(self._world.broker.sent))
        of_key = {key: [name for name in first if name.startswith(key)] for key in KEYS if key}
        return [key for key, names in of_key.items() if names != sorted(names)]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.resend.after_faults", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1)
    given = parser.parse_args()
    broken, longest = 0, {False: 0.0, True: 0.0}
    for seed in range(given.first, given.first + given.seeds):
        for kills in (False, True):
            with tempfile.TemporaryDirectory() as directory:
                world = World(f"sqlite:///{directory}/world.db")
                came = Chaos(world, seed, kills=kills).run()
                world.database.close()
            longest[kills] = max(longest[kills], came.seconds)
            if came.late or came.out_of_order:
                broken += 1
                print(f"seed {seed}, kills {kills}: {came}", file=sys.stderr)
    print(
        f"{given.seeds} seeds, {broken} broken; the last one was sent after {longest[False]:.1f} s,"
        f" where schedulers died after {longest[True]:.1f} s"
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
