"""Figures of the tree: lines, files, arrows, names that stand twice, faces, settings, sentences.

Run as a program: `python -m tests.house.figures`, from the root of the checkout.
"""

import ast
import inspect
import re
import statistics
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from tests.test_layers import imported_names

from reliable_mq import AsyncClient, Client, ReliableMQ
from reliable_mq.settings import Settings

SOURCE = Path("src/reliable_mq")
_IMPORT_TRIES = 5
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+")
_NO_PROSE = re.compile(r"```.*?```|^\|.*?$|^#.*?$|\]\([^)]*\)", re.DOTALL | re.MULTILINE)


def modules(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the dotted name and the text of each module below a folder."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        yield ".".join(parts[: -1 if parts[-1] == "__init__" else None]), path.read_text()


def lines_by_folder(root: Path) -> dict[str, tuple[int, int]]:
    """Return how many files and lines each folder of the first level has."""
    files, lines = Counter[str](), Counter[str]()
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        folder = parts[0] if parts[1:] else "."
        files[folder] += 1
        lines[folder] += len(path.read_text().splitlines())
    return {folder: (files[folder], lines[folder]) for folder in sorted(files)}


def arrows() -> dict[str, set[str]]:
    """Return which modules each module of the source imports."""
    sources = dict(modules(SOURCE))
    found: dict[str, set[str]] = {name: set() for name in sources}
    for name, text in sources.items():
        package = f"reliable_mq.{name.rpartition('.')[0]}".rstrip(".")
        for imported in imported_names(text, package):
            parts = imported.split(".")[1:] if imported.startswith("reliable_mq.") else []
            while parts and ".".join(parts) not in sources:
                parts.pop()
            if parts and ".".join(parts) != name:
                found[name].add(".".join(parts))
    return found


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return groups of nodes of which each reaches every other one."""
    reached = {node: _reached(graph, node) for node in graph}
    groups = {
        frozenset({node} | {other for other in reached[node] if node in reached[other]})
        for node in graph
    }
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reached(graph: dict[str, set[str]], start: str) -> set[str]:
    seen, waiting = set[str](), [start]
    while waiting:
        for node in graph.get(waiting.pop(), set()) - seen:
            seen.add(node)
            waiting.append(node)
    return seen


def by_folder(graph: dict[str, set[str]]) -> dict[str, set[str]]:
    """Return the arrows between folders; modules beside the folders are left out."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, targets in graph.items():
        folder = name.partition(".")[0]
        if "." in name:
            found[folder] |= {each.partition(".")[0] for each in targets if "." in each} - {folder}
    return dict(found)


def names_twice() -> dict[str, list[str]]:
    """Return the class names that stand in more than one module, with the modules."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, text in modules(SOURCE):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(name)
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def public_names(face: type) -> list[str]:
    """Return what a face shows; `__init__` sets more, which is counted by its assignments."""
    shown = {name for name in dir(face) if not name.startswith("_")}
    for each in face.__mro__[:-1]:
        source = inspect.getsource(each)
        shown |= set(re.findall(r"^\s+self\.([a-z]\w*)(?::[^=\n]+)? = ", source, re.MULTILINE))
    return sorted(shown)


def sentences(text: str) -> list[str]:
    """Return the sentences of a page, without code and tables."""
    text = re.sub(r"`[^`]*`", "code", _NO_PROSE.sub("", text))
    paragraphs = re.split(r"\n\s*\n|\n\s*[-*] |\n\s*\d+\. ", text)
    found = [each for part in paragraphs for each in _SENTENCE_END.split(part.lstrip("-* \n"))]
    return [each for each in found if each.strip()]


def sentence_lengths(page: Path) -> list[int]:
    """Return how many words each sentence of a page has, without code and tables."""
    return [len(each.split()) for each in sentences(page.read_text())]


def seconds_to(*arguments: str) -> float:
    """Return the processor time of a Python with these arguments: the least of some tries."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN); print(used.ru_utime + used.ru_stime)"
    )
    command = [sys.executable, "-c", code, sys.executable, *arguments]
    tries = [
        subprocess.run(command, check=True, capture_output=True, text=True).stdout
        for _ in range(_IMPORT_TRIES)
    ]
    return min(map(float, tries))


def main() -> None:
    """Print all figures."""
    for root in (SOURCE, Path("tests")):
        table = lines_by_folder(root)
        files, lines = (sum(column) for column in zip(*table.values(), strict=True))
        print(f"{root}: {lines} lines in {files} files")
        for folder, (count, size) in table.items():
            print(f"  {folder:<16} {count:>4} files {size:>6} lines")
    graph = arrows()
    print(f"circles of modules: {len(circles(graph))}")
    for circle in circles(graph):
        print("  " + " ".join(circle))
    print(f"circles of folders: {circles(by_folder(graph))}")
    twice = names_twice()
    print(f"class names that stand twice or more: {len(twice)}")
    for name, places in twice.items():
        print(f"  {name}: {', '.join(places)}")
    for face in (ReliableMQ, Client, AsyncClient):
        print(f"public names of {face.__name__}: {len(public_names(face))}")
    print(f"settings: {len(Settings.model_fields)}")
    for page in (Path("README.md"), Path("ARCHITECTURE.md"), *sorted(Path("docs").rglob("*.md"))):
        lengths = sentence_lengths(page)
        median = statistics.median(lengths)
        print(f"words a sentence, {page}: median {median:g}, at most {max(lengths)}")
    faces = "from reliable_mq import AsyncClient, Client, ReliableMQ"
    print(f"import reliable_mq: {seconds_to('-c', 'import reliable_mq'):.2f} s of processor time")
    print(f"{faces}: {seconds_to('-c', faces):.2f} s")
    print(f"reliable-mq --help: {seconds_to('-m', 'reliable_mq.cli.main', '--help'):.2f} s")


if __name__ == "__main__":
    main()
