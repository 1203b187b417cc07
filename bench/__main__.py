"""All measurements one after another: `python -m bench` or `make bench`, some fifteen minutes.

What needs Java and Maven is left out, with a line that says so, where they are missing.
"""

import subprocess
import sys

from bench.java_programs import missing_tools
from bench.render import PAGE

MEASUREMENTS = {
    "orders_end_to_end": [],
    "kill_broker": ["--kills", "20", "--client", "python"],
}
WITH_JAVA = {
    "send_throughput": [],
    "kill_broker": ["--kills", "20", "--client", "java"],
}


def main() -> int:
    failures = 0
    reason = missing_tools()
    for measurements, is_possible in ((MEASUREMENTS, True), (WITH_JAVA, reason is None)):
        for name, options in measurements.items():
            print(f"== {name} {' '.join(options)}", flush=True)
            if is_possible:
                command = [sys.executable, "-m", f"bench.{name}", *options]
                failures += subprocess.run(command, check=False).returncode != 0
            else:
                print(f"left out, {reason}")
    subprocess.run([sys.executable, "-m", "bench.render"], check=True)
    print(f"tables: {PAGE}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
