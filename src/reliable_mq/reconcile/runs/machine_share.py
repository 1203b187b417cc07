"""Compute the cores and the memory that Spark uses on one machine. Pure.

On two cores Spark uses four gigabytes: two for Java's heap, half a gigabyte for each Python worker,
and the rest for this process and for Java beside its heap. Every further core needs one gigabyte
more. If memory is short, Spark uses fewer cores, and at last a smaller heap.
"""

import re
from typing import NamedTuple

from reliable_mq.errors import ConfigurationError

_MIB = 1024 * 1024
_HEAP_MIB, _HEAP_OF_A_CORE_MIB = 1024, 512
_HEAP_MIB_MIN = 512  # Spark needs at least 450
_WORKER_MIB = 512
_BESIDE_MIB, _BESIDE_MIB_MIN = 768, 512
_SHARE = 0.8  # of the machine's memory: other programs need some, too
MEMORY_MIB_MIN = _HEAP_MIB_MIN + _WORKER_MIB + _BESIDE_MIB_MIN
PARTITION_BYTES = 128 * _MIB
_PARTITIONS_MAX = 2_000


_SIZE = re.compile(r"(\d+)\s*([mg])(?:i?b)?", re.IGNORECASE)


def parse_memory(text: str, option: str) -> int:
    """Parse a size in bytes: `4g`, `1500m`, `2 GiB`.

    Raises:
        ConfigurationError: when it is no size. The text names `option`.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigurationError(f"{option} takes a size like 4g or 1500m, not {text!r}")
    return int(match[1]) * _MIB * (1024 if match[2].lower() == "g" else 1)


class MachineShare(NamedTuple):
    """The cores and the heap (MiB) that Spark may use."""

    cores: int
    heap_mib: int


def share_of(machine_bytes: int, cpus: int, wanted_bytes: int | None = None) -> MachineShare:
    """Return the number of cores and the heap size that fit into a machine's memory.

    Args:
        machine_bytes: memory of the machine, or of the container.
        cpus: processors that this process may use.
        wanted_bytes: memory for the whole run. None: 80 % of `machine_bytes`.

    Raises:
        ConfigurationError: when the memory is too small for Spark.
    """
    budget = int(machine_bytes * _SHARE) if wanted_bytes is None else wanted_bytes
    mib = budget // _MIB
    if mib < MEMORY_MIB_MIN:
        reason = "--memory gives" if wanted_bytes is not None else "this machine can spare"
        raise ConfigurationError(
            f"Spark needs {MEMORY_MIB_MIN} MiB of memory, {reason} {mib} MiB; use another machine,"
            " or run it on a cluster (spark-submit)"
        )
    of_a_core = _HEAP_OF_A_CORE_MIB + _WORKER_MIB
    cores = max(1, min(cpus, (mib - _HEAP_MIB - _BESIDE_MIB) // of_a_core))
    heap = _HEAP_MIB + cores * _HEAP_OF_A_CORE_MIB
    if heap + _WORKER_MIB * cores + _BESIDE_MIB > mib:
        heap = max(_HEAP_MIB_MIN, mib - _WORKER_MIB - _BESIDE_MIB)
    return MachineShare(cores, heap)


def partitions_for(row_bytes: int, cores: int) -> int:
    """Return the number of partitions for `row_bytes`: small partitions, but not too many."""
    return min(max(cores, -(-row_bytes // PARTITION_BYTES)), _PARTITIONS_MAX)
