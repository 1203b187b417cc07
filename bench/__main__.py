"""All measurements one after another: `python -m bench` or `make bench`, more than an hour.

What needs Java and Maven, or a rival's package, is left out with a line that says so where they are
missing.
"""

import importlib.util
import subprocess
import sys

from bench.java_programs import missing_tools
from bench.render import PAGES

MEASUREMENTS = (
    "wire_codec",
    "orders_end_to_end",
    "order_flow",
    "many_at_once",
    "resend",
    "console_pages",
    "console_beside",
    "read_log",
    "read_tables",
    "duplicates",
    "rival_procrastinate",
    "reconcile",
    "reconcile_load",
    "reconcile_increment",
    "kill_broker",
    "kill_pair",
    "kill_sdk",
    "send_throughput",
    "send_apart",
    "pair_throughput",
    "pair_lag",
    "pair_copy",
    "consume_throughput",
    "sdk_throughput",
    "by_message",
    "popped_kill",
    "http2_cost",
    "broker_scale",
    "client_rivals",
    "client_failover",
    "client_memory",
    "client_idle",
    "start_cost",
)
NEED_JAVA = {
    "send_throughput",
    "send_apart",
    "pair_throughput",
    "consume_throughput",
    "sdk_throughput",
    "kill_sdk",
}
NEED_PACKAGE = {"rival_procrastinate": "procrastinate"}


def _missing(name: str) -> str | None:
    """Return what keeps a measurement from running, as one sentence, or None."""
    package = NEED_PACKAGE.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        return f"not installed: {package}"
    return missing_tools() if name in NEED_JAVA else None


def main() -> int:
    failures = 0
    for name in MEASUREMENTS:
        print(f"== {name}", flush=True)
        reason = _missing(name)
        if reason is not None:
            print(f"left out, {reason}")
            continue
        failures += subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode
    subprocess.run([sys.executable, "-m", "bench.render"], check=True)
    print(f"tables: {PAGES[0].parent}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
