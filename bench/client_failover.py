"""How long sends pause when one of two masters is killed or stalls, and what is lost of them.

Sixteen senders have one message each under way and never stop. Once all have been acknowledged a
hundred times, a master gets SIGKILL or SIGSTOP; the longest time without any acknowledgement, and
the longest that a single send took, are the figures. Then it comes back, and a consumer has to get
everything that was acknowledged.

    python -m bench.client_failover --kinds "two bundled" "two apache" --rounds 5
"""

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvloop

from bench import raw_results
from bench.clusters import KINDS, OF_OURS, Cluster
from bench.java_programs import missing_tools
from bench.render import figures_table
from reliable_mq.client.asyncio_client import AsyncClient
from reliable_mq.client.consuming.subscription import Subscription
from reliable_mq.client.settings import ClientSettings
from reliable_mq.errors import ReliableMQError
from reliable_mq.message import Message, ReceivedMessage
from reliable_mq.outcomes import CONSUMED, Outcome

LANES = 16
BEFORE = 100
WATCHED_SECONDS = 6.0
BACK_SECONDS_MAX = 120.0
BAR = "<= 3"
SETTINGS = ClientSettings(route_refresh_seconds=1.0)


class Load:
    """Senders that never stop, and when each of their sends began and was acknowledged."""

    def __init__(self, client: AsyncClient, topic: str) -> None:
        self.sends: list[tuple[float, float]] = []
        self.acknowledged: set[int] = set()
        self.failed = 0
        self._client, self._topic = client, topic
        self._numbers = itertools.count()
        self._lanes = [asyncio.create_task(self._lane()) for _ in range(LANES)]

    async def _lane(self) -> None:
        for number in self._numbers:
            begun = time.monotonic()
            try:
                await self._client.send(Message(topic=self._topic, body=b"%d" % number))
            except ReliableMQError:
                self.failed += 1
            else:
                self.sends.append((begun, time.monotonic()))
                self.acknowledged.add(number)

    async def stop(self) -> None:
        """End the senders."""
        for lane in self._lanes:
            lane.cancel()
        await asyncio.gather(*self._lanes, return_exceptions=True)

    def longest_gap(self, since: float) -> float:
        """Return the longest time without an acknowledgement, from just before `since` on."""
        ends = sorted(end for _, end in self.sends)
        first = max((at for at, end in enumerate(ends) if end <= since), default=0)
        return max(after - before for before, after in itertools.pairwise(ends[first:]))

    def longest_send(self, since: float) -> float:
        """Return the longest that a send took which ended after `since`."""
        return max(end - begun for begun, end in self.sends if end > since)


async def lose_one(cluster: Cluster, topic: str, end: str) -> dict[str, float]:
    """Let the last master end under load and come back; return what that came to."""
    victim = list(cluster.masters)[-1]
    process = cluster.masters[victim].process
    seen: set[int] = set()

    async def handle(messages: Sequence[ReceivedMessage]) -> Sequence[Outcome]:
        seen.update(int(message.body) for message in messages)
        return [CONSUMED] * len(messages)

    names = cluster.name_server_address
    async with (
        AsyncClient(names, settings=SETTINGS) as client,
        AsyncClient(names, settings=SETTINGS) as reader,
    ):
        await client.create_topic(topic, 4)
        await reader.consume(Subscription(group=topic, topics={topic: "*"}), handle)
        load = Load(client, topic)
        async with asyncio.timeout(BACK_SECONDS_MAX):
            while len(load.sends) < BEFORE * LANES:
                await asyncio.sleep(0.01)
        at = time.monotonic()
        (process.kill if end == "killed" else process.pause)()
        await asyncio.sleep(WATCHED_SECONDS)
        figures = {"gap": load.longest_gap(at), "send": load.longest_send(at)}
        back = cluster.start if end == "killed" else lambda _: process.resume()
        await asyncio.to_thread(back, victim)
        await load.stop()
        deadline = time.monotonic() + BACK_SECONDS_MAX
        while not load.acknowledged <= seen and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
    return {**figures, "failed": load.failed, "lost": len(load.acknowledged - seen)}


def measure(kind: str, directory: Path, rounds: int) -> list[dict[str, Any]]:
    """Lose a master of a cluster in both ways, so many times, and return the figures."""
    found = []
    with KINDS[kind](directory) as cluster:
        cluster.wait_until_whole()
        for end in ("killed", "stalled"):
            each = [
                uvloop.run(lose_one(cluster, f"{end}-{number}", end)) for number in range(rounds)
            ]
            for name, what, unit, bar in (
                ("gap", "longest time without an acknowledgement", "s", BAR),
                ("send", "longest send", "s", BAR),
                ("failed", "sends that failed", "", "0"),
                ("lost", "acknowledged and lost", "", "0"),
            ):
                values = [figures[name] for figures in each]
                value = round(max(values), 3)
                print(f"{kind}, {end}: {what} {value} (median {statistics.median(values):.3f})")
                line = {"what": f"{kind}, {end}: {what}", "value": value, "unit": unit, "bar": bar}
                found.append(line)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description="Sends while one of two masters goes away.")
    of_two = [kind for kind in KINDS if kind.startswith(("two", "mixed"))]
    parser.add_argument("--kinds", nargs="+", choices=of_two, default=of_two[:3])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    found: list[dict[str, Any]] = []
    for kind in options.kinds:
        if kind not in OF_OURS and (reason := missing_tools()) is not None:
            print(f"{kind} is left out, {reason}")
            continue
        with tempfile.TemporaryDirectory(prefix="reliable-mq-failover-") as directory:
            found += measure(kind, Path(directory), options.rounds)
    settings = {"rounds": options.rounds, "lanes": LANES}
    results = raw_results.of_now("client-failover", settings, found)
    print(f"raw results: {raw_results.write(results)}\n{figures_table(results)}")
    return int(any(each["bar"] == "0" and each["value"] for each in found))


if __name__ == "__main__":
    sys.exit(main())
