"""What each extra costs: installs the wheel with each extra into an empty folder, and measures it.

python -m bench.install_sizes                    all extras; writes docs/evidence/install_sizes.md
python -m bench.install_sizes postgres sqlite    some; prints the table only

Sizes are those on the disk. pip compiles what it installs, which adds about half; uv and
`pip install --no-compile` do not. Sizes differ between systems and versions of Python, which the
page names.
"""

import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import NamedTuple

from tests.documentation.extras_page import PURPOSES, extras

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "evidence" / "install_sizes.md"
MEGABYTE = 1_000_000
SHOWN = 4
"""How many of the largest packages are named."""


class Installed(NamedTuple):
    """What an installation takes, in bytes.

    `files`: what the packages have; `compiled`: what pip adds; `packages`: files by package.
    """

    files: int
    compiled: int
    packages: dict[str, int]


def size_of(distribution: Distribution) -> int:
    """Return how many bytes the files of a package take, without compiled ones."""
    paths = (Path(str(each.locate())) for each in distribution.files or ())
    return sum(path.stat().st_size for path in paths if path.is_file() and path.suffix != ".pyc")


def install(wheel: Path, extra: str, folder: Path) -> Installed:
    """Install the wheel with an extra into a folder; return what that takes."""
    what = f"{wheel}[{extra}]" if extra else str(wheel)
    words = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    subprocess.run([sys.executable, *words, "--target", str(folder), what], check=True)
    sizes = {path: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    compiled = sum(size for path, size in sizes.items() if path.suffix == ".pyc")
    packages = {each.name: size_of(each) for each in distributions(path=[str(folder)])}
    return Installed(sum(sizes.values()) - compiled, compiled, packages)


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    words = ("-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT))
    subprocess.run([sys.executable, *words], check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    return wheel


def row(extra: str, plain: Installed, found: Installed) -> str:
    """Return the line of the table about an extra."""
    more = found.files - plain.files if extra else found.files
    new = found.packages if not extra else found.packages.keys() - plain.packages.keys()
    largest = sorted(new, key=lambda name: -found.packages[name])[:SHOWN]
    named = ", ".join(f"{name} {found.packages[name] / MEGABYTE:.1f}" for name in largest)
    install_it = f"`reliable-mq[{extra}]`" if extra else "`reliable-mq`"
    all_of_it = found.files + found.compiled
    purpose = PURPOSES[extra] if extra else "broker, outbox, consumers, client, commands; SQLite"
    sizes = " | ".join(f"{each / MEGABYTE:.1f}" for each in (more, found.files, all_of_it))
    return f"| {install_it} | {sizes} | {named or '–'} | {purpose} |"


def table(wanted: Sequence[str]) -> str:
    """Measure the extras and return the table."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        wheel = build_wheel(folder)
        plain = install(wheel, "", folder / "plain")
        lines = [row("", plain, plain)]
        for extra in wanted:
            print(f"measuring {extra}", file=sys.stderr)
            lines.append(row(extra, plain, install(wheel, extra, folder / f"with {extra}")))
    columns = ("install", "more", "in all", "compiled, too", "largest packages", "for")
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    return "\n".join([head, *lines])


def main() -> None:
    """Measure what the command line names; without names everything, and write the page."""
    names = sys.argv[1:]
    shown = table(names or list(extras()))
    print(shown)
    if names:
        return
    where = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    PAGE.write_text(
        "# What an installation costs\n\n"
        f"Measured by `make sizes` with {where}, in MB of 10⁶ bytes,\n"
        'without Python itself. pip compiles what it installs; the column "compiled, too" has\n'
        "both. uv and `pip install --no-compile` do not compile.\n\n"
        f"{shown}\n"
    )


if __name__ == "__main__":
    main()
