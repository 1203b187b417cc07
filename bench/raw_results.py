"""What a measurement saw, kept as JSON in bench/results, so that every table can be made again."""

import json
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """What a reader needs to know of the machine to judge a figure."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def of_now(name: str, settings: Mapping[str, Any], rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """One measurement as it is kept: what was done, where, when, and every round of it."""
    return {
        "name": name,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "settings": dict(settings),
        "rounds": rounds,
    }


def write(results: Mapping[str, Any]) -> Path:
    """Write one measurement as `NAME-YYYYMMDD-HHMMSS.json` and return its path."""
    finished = datetime.fromisoformat(results["finished"])
    path = RESULTS / f"{results['name']}-{finished:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    return path


def newest(name: str) -> dict[str, Any] | None:
    """The last measurement of that name, None when there is none."""
    paths = sorted(RESULTS.glob(f"{name}-????????-??????.json"))
    return read(paths[-1]) if paths else None


def newest_figures(name: str) -> dict[str, Any] | None:
    """The last of each figure over all measurements of that name, in the frame of the newest."""
    measured = [read(path) for path in sorted(RESULTS.glob(f"{name}-????????-??????.json"))]
    if not measured:
        return None
    figures = {(each["what"], each["broker"]): each for one in measured for each in one["rounds"]}
    return {**measured[-1], "rounds": list(figures.values())}


def read(path: Path) -> dict[str, Any]:
    """Read one measurement."""
    content = json.loads(path.read_text())
    assert isinstance(content, dict)
    return content
