"""Structs that values are read into: msgspec looks at them when their module is imported.

Receives a struct; hands it on as it is. What msgspec has to know of a struct it finds out when it
first reads one, and by Python code, so another thread may come in between. That thread then takes
what is half known for whole, and the process ends with SIGSEGV (msgspec 0.22.0). At the time of its
import nobody else knows the struct.
"""

from typing import TypeVar

import msgspec

Kind = TypeVar("Kind", bound=type[msgspec.Struct])


def decodable(kind: Kind) -> Kind:
    """Let msgspec look at a struct, and at those within it, before any thread reads one."""
    msgspec.json.Decoder(kind)
    return kind
