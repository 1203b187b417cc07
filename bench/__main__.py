"""All measurements one after another: `python -m bench` or `make bench`, some forty minutes.

What needs Java and Maven is left out, with a line that says so, where they are missing.
"""

import subprocess
import sys

from bench.java_programs import missing_tools
from bench.render import PAGE

MEASUREMENTS = (
    "wire_codec",
    "orders_end_to_end",
    "order_flow",
    "resend",
    "duplicates",
    "kill_broker",
    "send_throughput",
    "consume_throughput",
    "broker_scale",
)
NEED_JAVA = {"send_throughput", "consume_throughput"}


def main() -> int:
    failures = 0
    reason = missing_tools()
    for name in MEASUREMENTS:
        print(f"== {name}", flush=True)
        if reason is not None and name in NEED_JAVA:
            print(f"left out, {reason}")
            continue
        failures += subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode
    subprocess.run([sys.executable, "-m", "bench.render"], check=True)
    print(f"tables: {PAGE}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
