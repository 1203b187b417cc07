"""Watches a message on its walk: notes landmarks in the order in which it is to pass them.

A landmark counts from when all before it were passed. So a heartbeat that happens to be encoded
while the message still waits is not taken for the message.

Receives landmarks: functions of the product, by name. Hands on the steps that were taken. It looks
from outside, through the interpreter's profile hook: no station knows that it is watched.
"""

import inspect
import sys
import threading
from abc import abstractmethod
from collections import deque
from collections.abc import Iterable
from importlib import import_module
from types import CodeType, FrameType
from typing import Any, NamedTuple, Self


class Landmark(NamedTuple):
    """A function that a message passes: `module:Class.method`, and the station it stands for."""

    station: str
    function: str


class WalkStep(NamedTuple):
    """A landmark that was passed, and the first line of what the function says of itself."""

    station: str
    function: str
    says: str


def _function(name: str) -> Any:
    module, _, path = name.partition(":")
    found: Any = import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
    return inspect.unwrap(getattr(found, "__func__", found))


class CallHook:
    """Lets the interpreter report calls to `called` while `is_on`.

    It sees the thread that enters it, and threads that start after that.
    """

    def __init__(self) -> None:
        self.is_on = False

    def __enter__(self) -> Self:
        threading.setprofile(self._reported)
        sys.setprofile(self._reported)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)
        self.is_on = False

    @abstractmethod
    def called(self, frame: FrameType) -> None:
        """Take note of a call; `frame` is that of the function called."""

    def _reported(self, frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and self.is_on:
            self.called(frame)


class WalkRecorder(CallHook):
    """Records while `is_on`. Threads that were started before it was entered are not seen.

    Invariant: a landmark is noted at most once, and only when all before it were.
    """

    def __init__(self, landmarks: Iterable[Landmark]) -> None:
        super().__init__()
        self.steps: list[WalkStep] = []
        self._waiting: deque[tuple[CodeType, WalkStep]] = deque()
        self._lock = threading.Lock()
        for landmark in landmarks:
            function = _function(landmark.function)
            says = (inspect.getdoc(function) or "").split("\n")[0]
            self._waiting.append((function.__code__, WalkStep(*landmark, says)))

    @property
    def missed(self) -> list[str]:
        """The landmarks that were not passed."""
        return [step.function for _, step in self._waiting]

    def called(self, frame: FrameType) -> None:
        """Note the landmark when it is the next one."""
        if self._is_next(frame.f_code):
            with self._lock:
                if self._is_next(frame.f_code):  # another thread may have been here, too
                    self.steps.append(self._waiting.popleft()[1])

    def _is_next(self, code: CodeType) -> bool:
        return bool(self._waiting) and self._waiting[0][0] is code
