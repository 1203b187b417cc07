"""Errors as they are when they were raised."""

from collections.abc import Callable
from typing import Any


def raised_by(call: Callable[[], Any]) -> Exception:
    """Return what a call raises."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - whatever it is
        return error
    raise AssertionError("nothing was raised")
