"""The outcomes of a handler: one set of words, in the framework and in the bare client.

    Consumed            the message is finished
    Retry(after=…)      deliver the message again
    Reject(reason)      move the message to the dead letters

A handler may return each of them, and may raise the last two. Receives the results of handlers.
Returns checked outcomes. It does not know what a consumer does with them.
"""

import sys
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from numbers import Real
from typing import Any, NamedTuple, TypeGuard

import msgspec

from reliable_mq import old_names
from reliable_mq.errors import UsageError, error_text
from reliable_mq.limits import DELAY_LEVEL_SECONDS
from reliable_mq.misspelt import explained

RETRY_SECONDS_MAX = DELAY_LEVEL_SECONDS[-1]
"""The longest wait of `Retry`: the longest delay level of brokers."""


class Consumed(msgspec.Struct, frozen=True):
    """The message is finished."""


CONSUMED = Consumed()


class _Word(Exception):
    """An outcome that may also be raised. It compares by value, and survives pickling."""

    reason: str = ""

    def _values(self) -> tuple[object, ...] | None:
        """Return the values to compare; None for a user's subclass, which may have more values."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        values = self._values()
        if values is None or not isinstance(other, _Word):
            return NotImplemented  # equal only to itself
        return values == other._values()

    def __hash__(self) -> int:
        values = self._values()
        return super().__hash__() if values is None else hash(values)

    def __reduce__(self) -> tuple[Any, ...]:  # without __init__, which a subclass may change
        return _made_again, (type(self), self.args), self.__dict__


def _made_again(kind: type[_Word], args: tuple[object, ...]) -> _Word:
    return kind.__new__(kind, *args)


class Retry(_Word):
    """Return or raise it in a handler to get the message delivered again.

    The framework rolls the handler's transaction back. The bare client has no transaction.

    Args:
        after: seconds until the next delivery, or a timedelta; at most two hours. Any real number,
            also of numpy or `fractions`. None: the usual wait. The attribute has seconds.
        reason: the reason, for the log and, after the last attempt, for the dead letter. Without
            a reason, they name the error that this was raised from, if there is one.
        counts: whether this is an attempt. A `Retry` that does not count never brings the message
            nearer to the dead letters. Use it when a resource is busy, for example.

    Raises:
        UsageError: when `after` is neither a number nor a timedelta, is negative, or is above two
            hours; when the reason is not a text; when `counts` is not a bool.
    """

    after: float | None = None
    counts: bool = True
    __match_args__ = ("after", "reason")

    @explained
    def __init__(
        self, after: float | timedelta | None = None, reason: str = "", *, counts: bool = True
    ) -> None:
        if isinstance(after, timedelta):
            after = after.total_seconds()
        text = "again" if after is None else f"again after {after} s"
        super().__init__(f"{text}: {reason}" if reason else text)
        self.reason, self.counts = reason, counts
        self.after = after
        if fault := _fault_of(self):
            raise UsageError(f"{fault.name} of Retry is {fault.value!r:.100}: give {fault.wanted}")
        if after is not None and not 0 <= after <= RETRY_SECONDS_MAX:
            raise UsageError(f"Retry(after={after}): it must be within 0..{RETRY_SECONDS_MAX:g} s")
        self.after = None if after is None else float(after)

    @property
    def why(self) -> str:
        """The text for people: the reason, and the error that it was raised from or after."""
        return self.grounds or "the handler asked for it and gave no reason"

    @property
    def grounds(self) -> str:
        """The reason, and the error that it was raised from or after; "" without both."""
        cause = self.__cause__ or (None if self.__suppress_context__ else self.__context__)
        return "; ".join(
            filter(None, (self.reason, error_text(cause) if cause is not None else ""))
        )

    @property
    def after_seconds(self) -> float | None:
        """The old name of `after`."""
        return self.after

    def _values(self) -> tuple[object, ...] | None:
        if type(self) not in (Retry, Later):
            return None
        return Retry, self.after, self.reason, self.counts

    def __repr__(self) -> str:
        after = "" if self.after is None else f"after={self.after!r}"
        reason = f"reason={self.reason!r}" if self.reason else ""
        counts = "" if self.counts else "counts=False"
        return f"{type(self).__name__}({', '.join(filter(None, (after, reason, counts)))})"


class Reject(_Word):
    """Return or raise it in a handler to move the message to the dead letters.

    It happens at once, also when attempts are left. The attempt is rolled back.

    Args:
        reason: the reason, for people.

    Raises:
        UsageError: when the reason is not a text.
    """

    __match_args__ = ("reason",)

    @explained
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        if fault := _fault_of(self):
            raise UsageError(f"{fault.name} of Reject is {fault.value!r:.100}: give {fault.wanted}")

    def _values(self) -> tuple[object, ...] | None:
        return (Reject, self.reason) if type(self) in (Reject, Dead) else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.reason!r})"


Outcome = Consumed | Retry | Reject
RAISED = (Retry, Reject)
"""The outcomes that may be raised."""
_WORDS = (Consumed, Retry, Reject)  # `isinstance` with a union is slower


def retry_of_ours(after: float | None, *, counts: bool = True, reason: str = "") -> Retry:
    """Return a `Retry` of the client itself, whose time may exceed two hours.

    The time comes from a lease, a setting, or a caller of `retry`. A held message waits that long.
    A message that is sent back waits at most for the broker's longest delay level.
    """
    outcome = Retry(reason=reason, counts=counts)
    outcome.after = after
    return outcome


def is_failure(outcome: Outcome) -> bool:
    """Return whether an outcome is a failed attempt."""
    return isinstance(outcome, Reject) or (isinstance(outcome, Retry) and outcome.counts)


def is_outcome(answer: object) -> TypeGuard[Outcome | type[Outcome]]:
    """Return whether a handler's return value is an outcome, or the class of one."""
    kind = answer if isinstance(answer, type) else type(answer)
    return issubclass(kind, _WORDS)


def checked_outcome(answer: object) -> Outcome:
    """Check and return one outcome of a handler. A class is called without arguments.

    Raises:
        UsageError: when the value is no outcome, or has invalid attributes.
    """
    if not is_outcome(answer):
        raise UsageError(f"a handler returned {answer!r:.200}, which is not an outcome")
    outcome = _made_of(answer) if isinstance(answer, type) else answer
    if not isinstance(outcome, Consumed) and (text := fault_of(outcome)):
        raise UsageError(f"a handler returned {outcome!r:.200}: {text}")
    return outcome


def _made_of(word: Callable[[], Outcome]) -> Outcome:
    try:
        return word()
    except TypeError as error:  # as for a class that is raised
        raise UsageError(
            f"a handler returned the class {word!r}, and it cannot be called: {error}"
        ) from error


def checked_outcomes(answer: object, count: int) -> Sequence[Outcome]:
    """Check a handler's return value for `count` messages; return one outcome for each.

    Args:
        answer: a sequence of `count` outcomes, or one outcome for all messages.
        count: how many messages the handler got.

    Raises:
        UsageError: when `answer` is something else.
    """
    if is_outcome(answer):
        return [checked_outcome(answer)] * count
    if not isinstance(answer, Sequence) or len(answer) != count:
        raise UsageError(
            f"a handler got {count} messages and returned {answer!r:.200}: "
            "return one outcome for each, or one for all"
        )
    for each in answer:
        if each.__class__ is not Consumed:
            return [checked_outcome(each) for each in answer]
    return answer


def raised_outcomes(error: BaseException, count: int) -> Sequence[Outcome] | None:
    """Return the outcomes that a handler raised for `count` messages; None: it has failed."""
    if not isinstance(error, RAISED):
        return None
    if text := fault_of(error):
        error.add_note(f"This is a failed attempt: {text}.")
        return None
    # The traceback would keep the handler's frames in memory as long as the outcome.
    return [error.with_traceback(None)] * count


async def outcomes_of(call: Awaitable[object], count: int) -> Sequence[Outcome]:
    """Await a handler's call; return its outcomes for `count` messages, returned or raised.

    Raises:
        UsageError: when the handler returned something that is no outcome.
        BaseException: any other error that the handler raised.
    """
    try:
        return checked_outcomes(await call, count)
    except RAISED as error:
        said = raised_outcomes(error, count)
        if said is None:
            raise
        return said


class _Fault(NamedTuple):
    name: str
    value: object
    wanted: str


def fault_of(outcome: Retry | Reject) -> str:
    """Return why an outcome is invalid; "" when it is valid. Attributes may have been set since."""
    fault = _fault_of(outcome)
    if fault is None and isinstance(outcome, Retry) and outcome.after is not None:
        most = sys.float_info.max
        if not -most <= outcome.after <= most:
            fault = _Fault("after", outcome.after, "a finite number or None")
    if fault is None:
        return ""
    of_what = f"{fault.name} of {type(outcome).__name__}"
    return f"{of_what} is of type {type(fault.value).__name__}: give {fault.wanted}"


def _fault_of(outcome: Retry | Reject) -> _Fault | None:
    if not isinstance(outcome.reason, str):
        return _Fault("the reason", outcome.reason, "text")
    if not isinstance(outcome, Retry):
        return None
    if not isinstance(outcome.counts, bool):
        return _Fault("counts", outcome.counts, "True or False")
    after = outcome.after
    if after is not None and (not isinstance(after, Real) or isinstance(after, bool)):
        return _Fault("after", after, "a number of seconds, a timedelta or None")
    return None


# Old names -----------------------------------------------------------------------------------


class _Renamed(type):
    """The metaclass of an old name: instances of the new class are instances of it, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, kind: type) -> bool:
        word: type | None = vars(cls).get("new_word")  # of this class, not inherited
        return super().__subclasscheck__(kind) if word is None else issubclass(kind, word)


class Later(Retry, metaclass=_Renamed):
    """The old name of `Retry`. Its time has no limit. Its values are checked when it is used.

    Args:
        after_seconds: as `after` of `Retry`.
        counts: as that of `Retry`.
        reason: as that of `Retry`.
    """

    new_word = Retry
    __match_args__ = ("after_seconds", "counts", "reason")

    def __init__(
        self, after_seconds: float | None = None, counts: bool = True, reason: str = ""
    ) -> None:
        super().__init__()
        self.after, self.counts, self.reason = after_seconds, counts, reason

    def __repr__(self) -> str:
        values = f"after_seconds={self.after!r}, counts={self.counts!r}, reason={self.reason!r}"
        return f"{type(self).__name__}({values})"

    __str__ = __repr__


class Dead(Reject, metaclass=_Renamed):
    """The old name of `Reject`. Its reason is checked when it is used.

    Args:
        reason: as that of `Reject`.
    """

    new_word = Reject

    def __init__(self, reason: str) -> None:
        super().__init__("")
        self.reason = reason

    def __repr__(self) -> str:
        return f"{type(self).__name__}(reason={self.reason!r})"

    __str__ = __repr__


OLD_WORDS: dict[str, type[Later] | type[Dead]] = {"Later": Later, "Dead": Dead}


def old_word(module: str, name: str) -> type[Retry] | type[Reject]:
    """Return the class of an old name, and warn the caller.

    `__getattr__` of a module that had the name calls it.
    """
    word = OLD_WORDS[name]
    old_names.warn_caller(old_names.now_called(f"{module}.{name}", word.new_word.__name__))
    return word
