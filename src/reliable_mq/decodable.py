"""Structs that are decoded: msgspec prepares them when their module is imported.

Receives a struct; returns it unchanged. Otherwise msgspec prepares a struct at its first use, by
Python code, so another thread may interrupt it. That thread uses the half-prepared facts, and the
process ends with SIGSEGV (msgspec 0.22.0). During the import, no other thread has the struct.
"""

from typing import TypeVar

import msgspec

Kind = TypeVar("Kind", bound=type[msgspec.Struct])


def decodable(kind: Kind) -> Kind:
    """Let msgspec prepare a struct, and the structs in it, before any thread decodes one."""
    msgspec.json.Decoder(kind)
    return kind
