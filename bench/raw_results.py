"""What a measurement saw, kept as JSON in bench/results, so that every table can be made again.

Of each kind only what a table shows is kept. What came before is in the history of the repository.
"""

import json
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
IN_PARTS = ("attacks", "scale", "by-message", "curves")
"""Kinds with tables whose figures come from several measurements; of others the newest counts."""


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
    """Write one measurement as `NAME-YYYYMMDD-HHMMSS.json`, in place of those that it replaces."""
    finished = datetime.fromisoformat(results["finished"])
    path = RESULTS / f"{results['name']}-{finished:%Y%m%d-%H%M%S}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")
    remove_replaced(results["name"])
    return path


def newest(name: str) -> dict[str, Any] | None:
    """The last measurement of that kind, None when there is none.

    Of a kind in parts it has the last of each figure over all measurements.
    """
    measured = [read(path) for path in measurements(name)]
    if not measured or name not in IN_PARTS:
        return measured[-1] if measured else None
    figures = {_figure(each): each for one in measured for each in one["rounds"]}
    return {**measured[-1], "rounds": list(figures.values())}


def replaced(name: str) -> list[Path]:
    """The measurements of that kind with nothing that `newest` returns."""
    paths = measurements(name)
    if name not in IN_PARTS:
        return paths[:-1]
    last = {_figure(each): path for path in paths for each in read(path)["rounds"]}
    return sorted({*paths[:-1]} - {*last.values()})


def remove_replaced(name: str) -> None:
    """Remove the measurements of that kind that a newer one replaces."""
    for path in replaced(name):
        path.unlink()


def measurements(name: str) -> list[Path]:
    """The files of all measurements of that kind, the newest last."""
    return sorted(RESULTS.glob(f"{name}-????????-??????.json"))


def _figure(one: Mapping[str, Any]) -> tuple[str, str]:
    return one["what"], one["broker"]


def read(path: Path) -> dict[str, Any]:
    """Read one measurement."""
    content = json.loads(path.read_text())
    assert isinstance(content, dict)
    return content
