"""The smallest useful install stays small."""

import re
from importlib.metadata import distribution
from pathlib import Path

from bench.install_sizes import MEGABYTE, size_of
from packaging.requirements import Requirement

SOURCE = Path(__file__).parents[2] / "src"
SMALLEST_MB_MAX = 60
"""Without the files that pip compiles. `make sizes` measures both."""


def needed_by(name: str, extras: frozenset[str], found: set[str]) -> set[str]:
    """Return the packages that a package needs with these extras, itself included."""
    found.add(re.sub(r"[-_.]+", "-", name).lower())
    for line in distribution(name).requires or ():
        wanted = Requirement(line)
        is_wanted = wanted.marker is None or any(
            wanted.marker.evaluate({"extra": extra}) for extra in ("", *extras)
        )
        if is_wanted and re.sub(r"[-_.]+", "-", wanted.name).lower() not in found:
            needed_by(wanted.name, frozenset(wanted.extras), found)
    return found


def test_the_smallest_install_takes_sixty_megabytes_at_most() -> None:
    needed = needed_by("reliable-mq", frozenset(), set()) - {"reliable-mq"}

    sizes = {name: size_of(distribution(name)) for name in needed}
    files = (path for path in SOURCE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    ours = sum(path.stat().st_size for path in files)
    assert (ours + sum(sizes.values())) / MEGABYTE <= SMALLEST_MB_MAX, sizes
