"""Apache's rocketmq-python-client in the rounds of `client_rivals`, through the gRPC proxy.

Runs in the rivals' environment: python -m bench.rival_rocketmq ENDPOINT TOPIC
"""

import os
import sys
import threading
import time
from collections import deque
from typing import Any

from rocketmq import ClientConfiguration, Credentials, Message, Producer, SimpleConsumer

from bench.rival_rounds import BODY, Figures, Meter, serve

RECEIVE = 32
INVISIBLE_SECONDS = 60
START_SECONDS_MAX = 60.0


class Official:
    """One producer and one consumer, and the verbs of a round."""

    def __init__(self, endpoint: str, topic: str) -> None:
        self._topic = topic
        self._backlog = f"{topic}-backlog"
        configuration = ClientConfiguration(endpoint, Credentials())
        self._producer = Producer(configuration, (topic,))
        self._consumer = SimpleConsumer(configuration, "rival-readers")

    def prepare(self) -> Figures:
        """Start both, and let the consumer's group begin where its topic ends now."""
        self._producer.startup()
        self._consumer.startup()
        self._consumer.subscribe(self._backlog)
        self._drain()
        return {}

    def _drain(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                messages = self._receive()
            except Exception:  # the proxy has not yet taken in what the consumer told of itself
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
                continue
            if not messages:
                return
            for message in messages:
                self._consumer.ack(message)

    def _receive(self) -> list[Any]:
        return self._consumer.receive(RECEIVE, INVISIBLE_SECONDS) or []

    def _message(self) -> Any:
        message = Message()
        message.topic = self._topic
        message.body = BODY
        return message

    def one(self, seconds: float) -> Figures:
        """Send one message at a time from one thread."""
        return self.threads(1, seconds)

    def threads(self, lanes: int, seconds: float) -> Figures:
        """Send from so many threads at once."""
        counts = [0] * lanes
        meter = Meter()
        end = time.perf_counter() + seconds

        def lane(number: int) -> None:
            while time.perf_counter() < end:
                self._producer.send(self._message())
                counts[number] += 1

        workers = [threading.Thread(target=lane, args=(number,)) for number in range(lanes)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return meter.figures(sum(counts))

    def futures(self, lanes: int, seconds: float) -> Figures:
        """Send from one thread, with so many futures under way."""
        under_way: deque[Any] = deque()
        meter, count = Meter(), 0
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            under_way.append(self._producer.send_async(self._message()))
            if len(under_way) == lanes:
                under_way.popleft().result()
            count += 1
        for future in under_way:
            future.result()
        return meter.figures(count)

    def receive(self, backlog: int) -> Figures:
        """Receive what was sent before, and acknowledge each message."""
        meter, count = Meter(), 0
        while count < backlog:
            for message in self._receive():
                self._consumer.ack(message)
                count += 1
        return meter.figures(count)


if __name__ == "__main__":
    client = Official(*sys.argv[1:])
    verbs = (client.prepare, client.one, client.threads, client.futures, client.receive)
    serve({verb.__name__: verb for verb in verbs})
    os._exit(0)  # its threads do not end by themselves
