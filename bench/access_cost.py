"""What access control costs a send: messages a second, and processor time of broker and client.

Two bundled brokers run at once, one with access control and one without. Clients send to them in
turn, Apache's Java client or our own. `off` does not sign, and `on` signs. `signed` signs to the
broker without access control, which does not look at it. So "signed to off" is what the client's
signing leaves, "on to signed" is what the broker's checks leave of that, and "on to off" is both.
Client and broker have the same two processors. Only the ratios of one run are a result.

After a round the index is still made of its messages. The next round begins when that is done: it
would hold up the client of the other broker, and would count as work for the next messages. The
processor time of a broker has it. Each round has the opposite order of the one before.

The tables at the end have a row for each count of threads. With `--rival`, the same is asked of two
brokers of Apache's, and a sentence says what access control costs there.

    python -m bench.access_cost [--rounds 5] [--seconds 4] [--threads 1 16 64] [--rival]
                                [--client java | python]
"""

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.apache_rocketmq import AUTH_PROVIDERS, ApacheRocketMQ
from bench.java_programs import WarmProgram, missing_tools
from bench.python_sender import PythonSender
from bench.reliable_mq_broker import ReliableMQBroker
from bench.send_cost import TOPIC, processor_seconds
from bench.send_throughput import pin_to_two_cores
from reliable_mq.runtime.blocking_link import BlockingLink
from reliable_mq.wire.codes import RequestCode
from reliable_mq.wire.command import request
from reliable_mq.wire.request_signature import add_signature

BODY_BYTES = 1024
WARMUP_SECONDS = 6
REST_SECONDS_MAX = 10
_LOOK_SECONDS, _RESTING = 0.2, 0.05  # a part of a processor; an idle broker takes 0.01 of one
ROOT, SHOP = ("root", "a secret of root"), ("shop", "a_secret_of_shop")
ON = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": msgspec.json.encode(
        dict(zip(("username", "password"), ROOT, strict=True))
    ).decode(),
}
POLICIES = [
    {"resource": "Topic:bench*", "actions": ["Pub"], "decision": "Allow"},
    {"resource": "Topic:other", "actions": ["All"], "decision": "Deny"},
]


class Pair(NamedTuple):
    """A running broker and its warm sender."""

    name: str
    broker: ReliableMQBroker | ApacheRocketMQ
    sender: WarmProgram | PythonSender


Seen = dict[str, list[dict[str, Any]]]
"""The rounds of one count of threads, by the name of the pair."""


def make_user(address: str) -> None:
    """Create the user of the signing sender, with its policies."""
    sign = partial(add_signature, access_key=ROOT[0], secret=ROOT[1])
    with BlockingLink(address, 10, prepare=sign) as link:
        user = msgspec.json.encode({"username": SHOP[0], "password": SHOP[1]})
        link.call(request(RequestCode.AUTH_CREATE_USER, {"username": SHOP[0]}, user))
        subject = {"subject": f"User:{SHOP[0]}"}
        acl = msgspec.json.encode({**subject, "policies": [{"entries": POLICIES}]})
        answer = link.call(request(RequestCode.AUTH_CREATE_ACL, subject, acl))
        assert answer.code == 0, answer.remark


def create_topic(address: str, topic: str, queues: int) -> None:
    """Create a topic as the super user."""
    sign = partial(add_signature, access_key=ROOT[0], secret=ROOT[1])
    with BlockingLink(address, 10, prepare=sign) as link:
        counts = {"readQueueNums": str(queues), "writeQueueNums": str(queues), "perm": "6"}
        fields = {"topic": topic, **counts}
        answer = link.call(request(RequestCode.UPDATE_AND_CREATE_TOPIC, fields))
        assert answer.code == 0, answer.remark


def take_round(pair: Pair, threads: int, seconds: float) -> dict[str, Any]:
    """Send one round; return messages a second, microseconds of broker and client, and writes.

    A turn of the broker has a write for its messages and one for their answers. So more writes
    for a message mean that fewer messages share a turn, and a sync. What the broker does behind the
    round counts as processor time, and not as writes.
    """
    pid = pair.broker.pids[0]
    before, client_before = processor_seconds(pid), processor_seconds(pair.sender.pid)
    writes_before = _writes(pid)
    seen = pair.sender.round(threads=threads, seconds=seconds)
    writes = _writes(pid) - writes_before
    spent = await_rest(pid) - before
    assert not seen["errors"], seen
    count = seen["messages"] / 1e6
    return {
        "per_second": seen["per_second"],
        "us": spent / count,
        "client_us": (processor_seconds(pair.sender.pid) - client_before) / count,
        "writes": writes / seen["messages"],
    }


def await_rest(pid: int) -> float:
    """Return the processor time of a process when it has nothing more to do, or after 10 s."""
    spent, deadline = processor_seconds(pid), time.monotonic() + REST_SECONDS_MAX
    while time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        before, spent = spent, processor_seconds(pid)
        if spent - before < _RESTING * _LOOK_SECONDS:
            break
    return spent


def _writes(pid: int) -> int:
    """Return how often a process has written so far, to files and to sockets."""
    text = Path(f"/proc/{pid}/io").read_text()
    return int(text.split("syscw:")[1].split()[0])


def main() -> int:
    parser = argparse.ArgumentParser(description="The cost of access control.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--flush", default="SYNC_FLUSH", choices=("SYNC_FLUSH", "ASYNC_FLUSH"))
    parser.add_argument("--client", default="java", choices=("java", "python"))
    parser.add_argument("--rival", action="store_true", help="Apache's own broker, too")
    options = parser.parse_args()
    needs_java = options.client == "java" or options.rival
    if needs_java and (reason := missing_tools()):
        print(reason, file=sys.stderr)
        return 2
    pin_to_two_cores()
    with (
        tempfile.TemporaryDirectory(prefix="reliable-mq-access-") as directory,
        ExitStack() as stack,
    ):
        home = Path(directory)
        off = stack.enter_context(ReliableMQBroker(home / "off", options.flush))
        on = stack.enter_context(ReliableMQBroker(home / "on", options.flush, settings=ON))
        wanted: list[tuple[str, ReliableMQBroker | ApacheRocketMQ]] = [
            ("off", off),
            ("signed", off),
            ("on", on),
        ]
        if options.rival:
            wanted += [("apache-off", _apache(home / "apache-off", options.flush, {}, stack))]
            settings = {**ON, **AUTH_PROVIDERS}
            wanted += [("apache-on", _apache(home / "apache-on", options.flush, settings, stack))]
        make_user(on.address)
        pair_of = _pair
        if options.client == "python":
            pair_of = _python_pair
            for broker in (off, on):
                create_topic(broker.address, TOPIC, 8)
        _measure([pair_of(home, *each) for each in wanted], options)
    return 0


def _apache(
    directory: Path, flush: str, settings: dict[str, str], stack: ExitStack
) -> ApacheRocketMQ:
    directory.mkdir()
    broker = stack.enter_context(ApacheRocketMQ(directory, flush, settings))
    if settings:
        make_user(broker.address)
    return broker


def _pair(home: Path, name: str, broker: ReliableMQBroker | ApacheRocketMQ) -> Pair:
    signing = {} if name.endswith("off") else {"access_key": SHOP[0], "secret_key": SHOP[1]}
    options = {"namesrv": broker.name_server_address, "body": BODY_BYTES, **signing}
    return Pair(name, broker, WarmProgram("Sender", home / name, **options))


def _python_pair(home: Path, name: str, broker: ReliableMQBroker | ApacheRocketMQ) -> Pair:
    account = None if name.endswith("off") else SHOP
    return Pair(name, broker, PythonSender(home / name, broker.name_server_address, account))


def _measure(pairs: list[Pair], options: argparse.Namespace) -> None:
    for pair in pairs:
        pair.sender.round(threads=max(options.threads), seconds=WARMUP_SECONDS)
        await_rest(pair.broker.pids[0])
    seen: dict[int, Seen] = {
        threads: {pair.name: [] for pair in pairs} for threads in options.threads
    }
    try:
        for number in range(options.rounds):
            for threads in options.threads:
                for pair in pairs if number % 2 == 0 else reversed(pairs):
                    found = take_round(pair, threads, options.seconds)
                    seen[threads][pair.name].append(found)
                    print(threads, pair.name, found, flush=True)
    finally:
        for pair in pairs:
            pair.sender.__exit__()
    for what in ("per_second", "us", "client_us", "writes"):
        print(
            f"\n| {what}: threads | off | signed | on | signed to off | on to off | on to signed |"
        )
        print("| ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
        for threads in options.threads:
            print(_row(seen[threads], threads, what))
    print()
    for threads in options.threads:
        print(_shares(seen[threads], threads))
    if options.rival:
        print()
        for threads in options.threads:
            print(_rival(seen[threads], threads))


def _row(seen: Seen, threads: int, what: str) -> str:
    """Return the medians of one figure, and the medians of its ratios within a round."""
    medians = (
        statistics.median(each[what] for each in seen[name]) for name in ("off", "signed", "on")
    )
    ratios = (
        _ratio(seen, what, name, to)
        for name, to in (("signed", "off"), ("on", "off"), ("on", "signed"))
    )
    cells = [*(f"{each:,.2f}" for each in medians), *(f"{each:.3f}" for each in ratios)]
    return f"| {threads} | {' | '.join(cells)} |"


def _shares(seen: Seen, threads: int) -> str:
    """Return how much of the rate the client's signing leaves, and how much the broker's checks."""
    whole, client, broker = (
        _ratio(seen, "per_second", name, to)
        for name, to in (("on", "off"), ("signed", "off"), ("on", "signed"))
    )
    return (
        f"{threads} threads: {whole:.2f} of the rate is left. The client's own signing leaves "
        f"{client:.2f}, at a broker that checks nothing. The checks leave {broker:.2f} of that."
    )


def _rival(seen: Seen, threads: int) -> str:
    """Return what access control leaves of the rate here and there, under the same client."""
    ours, theirs = (
        [_ratio(seen, what, f"{whose}on", f"{whose}off") for what in ("per_second", "us")]
        for whose in ("", "apache-")
    )
    return (
        f"{threads} threads: of the rate without access control, ours keeps {ours[0]:.2f} "
        f"(processor time of the broker {ours[1]:.2f}). Apache's own broker: {theirs[0]:.2f} "
        f"({theirs[1]:.2f})."
    )


def _ratio(seen: Seen, what: str, name: str, to: str) -> float:
    pairs = zip(seen[name], seen[to], strict=True)
    return float(statistics.median(each[what] / beside[what] for each, beside in pairs))


if __name__ == "__main__":
    sys.exit(main())
