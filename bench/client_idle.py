"""What a client costs that has nothing to do: processor time, and memory over a bare interpreter.

Each client runs in a process of its own, has sent and consumed some messages, and then waits for
more with its pulls open. The bare interpreter sleeps on a uvloop loop for as long. They idle side
by side. Exits with 1 when a client takes more than it may.

    python -m bench.client_idle [--seconds 60]
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench import raw_results
from bench.idle_process import ASYNC, BARE, SETTLE_SECONDS, THREAD
from bench.reliable_mq_broker import ReliableMQBroker
from bench.render import idle_table

QUEUES = (1, 8)
CPU_PERCENT_MAX = 0.2
MEMORY_MIB_MAX = 40.0
PATIENCE_SECONDS = 60.0


def measure(seconds: float) -> list[dict[str, Any]]:
    """Return what each kind of client used."""
    kinds = [(BARE, 0), *((kind, queues) for kind in (ASYNC, THREAD) for queues in QUEUES)]
    with (
        tempfile.TemporaryDirectory(prefix="reliable-mq-idle-") as directory,
        ReliableMQBroker(Path(directory)) as broker,
    ):
        children = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "bench.idle_process", kind),
                    *(broker.name_server_address, str(queues), str(seconds)),
                ],
                stdout=subprocess.PIPE,
                text=True,
            )
            for kind, queues in kinds
        ]
        timeout = seconds + SETTLE_SECONDS + PATIENCE_SECONDS
        outputs = [child.communicate(timeout=timeout)[0].split() for child in children]
    bare_kib = int(outputs[0][2])
    return [
        {
            "kind": kind,
            "queues": queues,
            "cpu_percent": round(float(cpu) / seconds * 100, 4),
            "wake_ups_per_second": round(int(wakes) / seconds, 2),
            "resident_mib": round(int(kib) / 1024, 1),
            "over_bare_mib": round((int(kib) - bare_kib) / 1024, 1),
        }
        for (kind, queues), (cpu, wakes, kib) in zip(kinds, outputs, strict=True)
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="What an idle client costs.")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    results = raw_results.of_now("idle", {"seconds": options.seconds}, measure(options.seconds))
    print(idle_table(results), raw_results.write(results), sep="\n")
    dear = [
        each
        for each in results["rounds"]
        if each["cpu_percent"] >= CPU_PERCENT_MAX or each["over_bare_mib"] >= MEMORY_MIB_MAX
    ]
    return 1 if dear else 0


if __name__ == "__main__":
    sys.exit(main())
