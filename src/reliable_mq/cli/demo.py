"""`reliable-mq demo`: finds the demo among the examples, which are not part of the package.

In a checkout, `examples/` lies beside `src/`. A wheel has `examples/shop` and `examples/demo` in
`bundled/` beside this file.
"""

import importlib
import sys
from functools import wraps
from pathlib import Path
from typing import Any

from reliable_mq.extras import check_extras

_HERE = Path(__file__).resolve()


def examples_root() -> Path:
    """Return the directory that holds `examples/`."""
    bundled = _HERE.parent / "bundled"
    return bundled if bundled.is_dir() else _HERE.parents[3]


sys.path.insert(0, str(examples_root()))
_demo = importlib.import_module("examples.demo.command").command


@wraps(_demo)
def command(*given: Any, **named: Any) -> Any:
    """Run the demo."""
    check_extras("demo", "embedded", "postgres", "spark")
    return _demo(*given, **named)
