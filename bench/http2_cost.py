"""What our HTTP/2 costs a gRPC server for each call, beside `grpcio`'s server and `grpclib`'s.

Each server is a process whose handler of `SendMessage` only answers. The client is `grpcio`'s in a
process of its own; it sends messages of 1 KiB from 1 and from 8 threads. `grpclib` is measured
where it is installed.

    python -m bench.http2_cost [--seconds 4] [--runs 3]
"""

import argparse
import asyncio
import importlib.util
import json
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from bench import raw_results
from bench.child_process import LoggedProcess
from bench.quiet import resident_mib, used_seconds, wait_until_idle
from bench.render import figures_table
from bench.send_throughput import pin_to_two_cores
from reliable_mq.gateway.message_types import TYPES
from reliable_mq.runtime.grpc_server import GrpcServer

SERVICE = "apache.rocketmq.v2.MessagingService"
PATH = f"/{SERVICE}/SendMessage"
THREADS = (1, 8)
START_SECONDS = 30
WARM_SECONDS = 1.0
METADATA = (("x-mq-client-id", "bench"), ("x-mq-language", "PYTHON"), ("x-mq-protocol", "v2"))


def call_bytes() -> bytes:
    """Return a call with one message of 1 KiB."""
    call = TYPES["SendMessageRequest"]()
    message = call.messages.add()
    message.topic.name, message.body = "bench", b"x" * 1024
    message.system_properties.message_id = "01ABCDEF0123456789ABCDEF0123456789"
    data = call.SerializeToString()
    assert isinstance(data, bytes)
    return data


def answer() -> Any:
    """Return what every server answers."""
    response = TYPES["SendMessageResponse"]()
    response.status.code, response.status.message = 20000, "OK"
    entry = response.entries.add()
    entry.status.code, entry.message_id = 20000, "01ABCDEF0123456789ABCDEF0123456789"
    return response


class AnswersOnly:
    """Stands for the gateway of our server."""

    def __init__(self) -> None:
        self.unary = {"SendMessage": self._send}
        self.streamed: dict[str, Any] = {}

    async def _send(self, caller: Any, call: Any) -> Any:
        del caller, call
        return answer()

    def start(self) -> None:
        """Do nothing between calls."""

    async def close(self) -> None:
        """Hold nothing."""


async def serve_ours() -> int:
    """Start ours; return its port."""
    server = GrpcServer(AnswersOnly())  # type: ignore[arg-type]
    await server.bind("127.0.0.1", 0)
    await server.serve()
    return server.listener.port


async def serve_grpcio() -> int:
    """Start `grpcio`'s; return its port."""
    import grpc  # noqa: PLC0415 - each process has one library

    async def send(call: Any, context: Any) -> Any:
        del call, context
        return answer()

    handler = grpc.unary_unary_rpc_method_handler(
        send,
        request_deserializer=TYPES["SendMessageRequest"].FromString,
        response_serializer=TYPES["SendMessageResponse"].SerializeToString,
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(SERVICE, {"SendMessage": handler}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    KEPT.append(server)
    return int(port)


async def serve_grpclib() -> int:
    """Start `grpclib`'s; return its port."""
    from grpclib.const import Cardinality, Handler  # noqa: PLC0415 - see above
    from grpclib.server import Server  # noqa: PLC0415 - see above

    class Answers:
        async def send(self, stream: Any) -> None:
            await stream.recv_message()
            await stream.send_message(answer())

        def __mapping__(self) -> dict[str, Any]:
            types = TYPES["SendMessageRequest"], TYPES["SendMessageResponse"]
            return {PATH: Handler(self.send, Cardinality.UNARY_UNARY, *types)}

    server = Server([Answers()])
    await server.start("127.0.0.1", 0)
    KEPT.append(server)
    listening: Any = server._server
    return int(listening.sockets[0].getsockname()[1])


KEPT: list[Any] = []
SERVERS = {
    "ours, uvloop": (serve_ours, uvloop.run),
    "grpc.aio": (serve_grpcio, asyncio.run),
    "grpc.aio, uvloop": (serve_grpcio, uvloop.run),
    "grpclib, uvloop": (serve_grpclib, uvloop.run),
}


def serve(name: str) -> None:
    """Be a server until the process ends."""
    begin, run = SERVERS[name]

    async def forever() -> None:
        print(f"port={await begin()}", flush=True)
        await asyncio.Event().wait()

    run(forever())


def load(address: str, threads: int, seconds: float) -> None:
    """Be a client for so long; print how many calls were answered."""
    import grpc  # noqa: PLC0415 - each process has one library

    data, counts = call_bytes(), [0] * threads
    with grpc.insecure_channel(address) as channel:
        send = channel.unary_unary(PATH)
        end = time.perf_counter() + seconds

        def lane(number: int) -> None:
            while time.perf_counter() < end:
                send(data, metadata=METADATA, timeout=10)
                counts[number] += 1

        workers = [threading.Thread(target=lane, args=(number,)) for number in range(threads)]
        for each in workers:
            each.start()
        for each in workers:
            each.join()
    print(json.dumps({"count": sum(counts)}))


def take_turn(
    folder: Path, server: LoggedProcess, port: str, threads: int, seconds: float
) -> tuple[float, float]:
    """Let a client call a server; return microseconds of its process for each call, and calls/s."""
    pid = server.child.pid
    used = used_seconds([pid])
    words = ("--load", f"127.0.0.1:{port}", "--threads", str(threads), "--seconds", str(seconds))
    client = LoggedProcess([sys.executable, "-m", "bench.http2_cost", *words], folder / "load.log")
    count = json.loads(client.wait_for(r"^\{.*\}$", seconds + START_SECONDS)[0])["count"]
    client.wait(START_SECONDS)
    return (used_seconds([pid]) - used) / count * 1e6, count / seconds


def measure(folder: Path, runs: int, seconds: float) -> list[dict[str, Any]]:
    """Measure all servers in turn."""
    figures: list[dict[str, Any]] = []
    with ExitStack() as stack:
        running: dict[str, tuple[LoggedProcess, str]] = {}
        for name in SERVERS:
            if name.startswith("grpclib") and importlib.util.find_spec("grpclib") is None:
                print("grpclib is left out, not installed: pip install grpclib")
                continue
            words = [sys.executable, "-m", "bench.http2_cost", "--serve", name]
            server = LoggedProcess(words, folder / f"{len(running)}.log")
            stack.callback(server.kill)
            running[name] = server, server.wait_for(r"port=(\d+)", START_SECONDS)[1]
        pids = [server.child.pid for server, _ in running.values()]
        for threads in THREADS:
            seen: dict[str, list[tuple[float, float]]] = {name: [] for name in running}
            for run in range(runs + 1):
                for name, (server, port) in running.items():
                    wait_until_idle(pids, 5)
                    took = WARM_SECONDS if run == 0 else seconds
                    turn = take_turn(folder, server, port, threads, took)
                    if run:
                        seen[name].append(turn)
            for name, turns in seen.items():
                what = f"{name}, {threads} thread{'s' * (threads > 1)}"
                found = [(median(each[0] for each in turns), "us of the server for a call")]
                found.append((median(each[1] for each in turns), "calls/s"))
                for value, unit in found:
                    figures.append(
                        {"what": what, "broker": "", "value": round(value), "unit": unit}
                    )
                    print(what, round(value), unit, flush=True)
        for name, (server, _) in running.items():
            value = round(resident_mib(server.child.pid))
            figures.append({"what": name, "broker": "", "value": value, "unit": "MiB"})
    return [{**each, "bar": ""} for each in figures]


def main() -> int:
    parser = argparse.ArgumentParser(description="Our HTTP/2 beside other gRPC servers.")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn")
    parser.add_argument("--runs", type=int, default=3, help="turns that count")
    parser.add_argument("--keep", action="store_true", help="keep the result in bench/results")
    parser.add_argument("--serve", choices=SERVERS, help=argparse.SUPPRESS)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return 0
    if options.load:
        load(options.load, options.threads, options.seconds)
        return 0
    pin_to_two_cores()
    with tempfile.TemporaryDirectory(prefix="reliable-mq-http2-") as name:
        figures = measure(Path(name), options.runs, options.seconds)
    settings = {"seconds": options.seconds, "runs": options.runs}
    results = raw_results.of_now("http2", settings, figures)
    print(figures_table(results))
    if options.keep:
        print(raw_results.write(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
