"""No two threads ever look at a struct for the first time: the process would end with SIGSEGV."""

import ast
import gc
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec

from reliable_mq.wire.headers import Header

SOURCE = Path(__file__).parent.parent / "src" / "reliable_mq"
# What takes a struct as an argument in order to read a value into it.
READING = frozenset({"convert", "decode", "decoded", "Decoder"})
FIRST_READ_BY_MANY = """
import sys, threading
from reliable_mq.outbox.stub import Stub
import msgspec

sys.setswitchinterval(1e-6)
together = threading.Barrier(4)
place = {"broker_name": "b", "queue_id": 0, "offset": 1}
row = {"seq": 1, "message_id": "m", "topic": "t", "content": b"", "position": place}

def read():
    together.wait()
    assert msgspec.convert(row, Stub).position.offset == 1

threads = [threading.Thread(target=read) for _ in range(4)]
for each in threads:
    each.start()
for each in threads:
    each.join()
"""


def modules() -> Iterator[tuple[Path, ModuleType]]:
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        of_django = "django" in parts  # it can be imported within a project of Django only
        if not of_django and "migrations" not in parts and not parts[-1].startswith("__"):
            yield path, importlib.import_module(".".join(parts))


def structs_read_in(path: Path, module: ModuleType) -> Iterator[type[msgspec.Struct]]:
    source = path.read_text()
    if not any(f"{name}(" in source for name in READING):
        return
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        if name not in READING:
            continue
        for given in (*call.args, *(each.value for each in call.keywords)):
            for part in ast.walk(given) if isinstance(given, ast.Name | ast.Subscript) else ():
                kind = getattr(module, part.id, None) if isinstance(part, ast.Name) else None
                if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                    yield kind


def is_looked_at(kind: type[msgspec.Struct]) -> bool:
    """Say whether msgspec has noted what it needs to read a struct."""
    return any(type(each).__name__ == "StructInfo" for each in gc.get_referents(kind))


def unprepared() -> list[str]:
    """Return the structs that the product reads values into, and had not looked at."""
    read = {kind for path, module in modules() for kind in structs_read_in(path, module)}
    read |= set(Header.__subclasses__())
    assert len(read) > 60
    return sorted(
        f"{kind.__module__}.{kind.__qualname__}" for kind in read if not is_looked_at(kind)
    )


def test_every_struct_that_values_are_read_into_is_looked_at_by_its_import() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "from tests.test_decodable import unprepared; print(unprepared())"],
        capture_output=True,
        text=True,
        cwd=SOURCE.parent.parent,
        check=True,
    )

    assert found.stdout.strip() == "[]"


def test_threads_may_read_their_first_stub_at_the_same_moment() -> None:
    ended = [
        subprocess.run([sys.executable, "-c", FIRST_READ_BY_MANY], check=False).returncode
        for _ in range(3)
    ]

    assert ended == [0, 0, 0]
