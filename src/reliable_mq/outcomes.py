"""What a handler says of a message: one set of words, in the framework and in the bare client.

    Consumed            it is done with
    Retry(after=…)      hand it out again
    Reject(reason)      it goes to the dead letters

A handler may return each of them, and may raise the last two. Receives what handlers say; hands on
outcomes that are sound. Refuses to know what is done with them.
"""

import sys
import warnings
from collections.abc import Awaitable, Callable, Sequence
from numbers import Real
from typing import Any, NamedTuple, TypeGuard

import msgspec

from reliable_mq.errors import UsageError, words_of
from reliable_mq.limits import DELAY_LEVEL_SECONDS

RETRY_SECONDS_MAX = DELAY_LEVEL_SECONDS[-1]
"""The broker keeps nothing back for longer: its longest delay level."""


class Consumed(msgspec.Struct, frozen=True):
    """The message is done with."""


CONSUMED = Consumed()


class _Word(Exception):
    """What is a value and may be raised: equal to its like, and the same when it was pickled."""

    reason: str = ""

    def _values(self) -> tuple[object, ...] | None:
        """Return what makes it equal to others; None: a subclass may carry more than we know."""
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        values = self._values()
        if values is None or not isinstance(other, _Word):
            return NotImplemented  # equal to itself alone
        return values == other._values()

    def __hash__(self) -> int:
        values = self._values()
        return super().__hash__() if values is None else hash(values)

    def __reduce__(self) -> tuple[Any, ...]:  # as it is: its class may want other arguments
        return _made_again, (type(self), self.args), self.__dict__


def _made_again(kind: type[_Word], args: tuple[object, ...]) -> _Word:
    return kind.__new__(kind, *args)


class Retry(_Word):
    """Return or raise it in a handler: hand the message out again; what it has done is undone.

    In the framework what is undone is the handler's transaction. The bare client has none.

    Args:
        after: seconds until then, two hours at most: any real number, those of numpy and fractions
            too; None: the usual wait.
        reason: why; the log and, after the last attempt, the dead letter say it. Without one they
            name the error that it was raised from, if there is one.
        counts: whether this was an attempt. One that does not count (somebody else has what the
            handler needs, say) never brings a message nearer to the dead letters.

    Raises:
        UsageError: when `after` is no number, negative, or longer than the broker keeps a message
            back, when the reason is no text, or `counts` neither True nor False.
    """

    after: float | None = None
    counts: bool = True
    __match_args__ = ("after", "reason")

    def __init__(
        self, after: float | None = None, reason: str = "", *, counts: bool = True
    ) -> None:
        told = "again" if after is None else f"again after {after} s"
        super().__init__(f"{told}: {reason}" if reason else told)
        self.reason, self.counts = reason, counts
        self.after = after
        if fault := _fault_of(self):
            raise UsageError(f"{fault.name} of Retry is {fault.value!r:.100}: give {fault.wanted}")
        if after is not None and not 0 <= after <= RETRY_SECONDS_MAX:
            raise UsageError(f"Retry(after={after}): it must be within 0..{RETRY_SECONDS_MAX:g} s")
        self.after = None if after is None else float(after)

    @property
    def why(self) -> str:
        """What people are told: the reason, and the error that it was raised from or after."""
        return self.grounds or "the handler asked for it and gave no reason"

    @property
    def grounds(self) -> str:
        """The reason, and the error that it was raised from or after; "" when there is neither."""
        cause = self.__cause__ or (None if self.__suppress_context__ else self.__context__)
        return "; ".join(filter(None, (self.reason, words_of(cause) if cause is not None else "")))

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
    """Return or raise it in a handler: undo this attempt; the message goes to the dead letters.

    That is done at once, however many attempts are left.

    Args:
        reason: what people are told.

    Raises:
        UsageError: when it is no text.
    """

    __match_args__ = ("reason",)

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
"""What may be raised as well."""
_WORDS = (Consumed, Retry, Reject)  # a union would be made anew for each message


def retry_of_ours(after: float | None, *, counts: bool = True, reason: str = "") -> Retry:
    """Return a `Retry` that no handler said: its time may be longer than a handler's.

    A lease, a setting and a caller of `retry` may say more than two hours: what is held here waits
    as long, what is sent back waits as long as the broker can.
    """
    outcome = Retry(reason=reason, counts=counts)
    outcome.after = after
    return outcome


def is_failure(outcome: Outcome) -> bool:
    """Say whether an outcome is a failed attempt."""
    return isinstance(outcome, Reject) or (isinstance(outcome, Retry) and outcome.counts)


def is_said(answer: object) -> TypeGuard[Outcome | type[Outcome]]:
    """Say whether what a handler returned is an outcome, or the class of one."""
    kind = answer if isinstance(answer, type) else type(answer)
    return issubclass(kind, _WORDS)


def checked_outcome(answer: object) -> Outcome:
    """Return one outcome that a handler returned. A class stands for what calling it makes.

    Raises:
        UsageError: when it is none, or one that says what cannot be.
    """
    if not is_said(answer):
        raise UsageError(f"a handler returned {answer!r:.200}, which is no outcome")
    outcome = _made_of(answer) if isinstance(answer, type) else answer
    if not isinstance(outcome, Consumed) and (text := fault_of(outcome)):
        raise UsageError(f"a handler says {outcome!r:.200}: {text}")
    return outcome


def _made_of(word: Callable[[], Outcome]) -> Outcome:
    try:
        return word()
    except TypeError as error:  # as Python says of a class that is raised
        raise UsageError(f"a handler returned {word!r}, a class and no object: {error}") from error


def checked_outcomes(answer: object, count: int) -> Sequence[Outcome]:
    """Return what a handler returned for `count` messages: one outcome for each.

    Args:
        answer: a sequence of so many outcomes, or one that counts for all messages.
        count: how many messages the handler got.

    Raises:
        UsageError: when it is something else.
    """
    if is_said(answer):
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
    """Return what a handler said for `count` messages by raising; None: it has just failed."""
    if not isinstance(error, RAISED):
        return None
    if text := fault_of(error):
        error.add_note(f"This is a failed attempt: {text}.")
        return None
    # Where it was raised is of no use to who does what it says; its frames would live as long.
    return [error.with_traceback(None)] * count


async def outcomes_of(call: Awaitable[object], count: int) -> Sequence[Outcome]:
    """Wait for a handler's call; return what it said for `count` messages, returned or raised.

    Raises:
        UsageError: when it returned what is no outcome.
        BaseException: whatever else it raised.
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
    """Return why an outcome cannot be; "" when it can. Its attributes may have been set since."""
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
        return _Fault("after", after, "a finite number or None")
    return None


# The words of before --------------------------------------------------------------------------


class _Renamed(type):
    """The class of a word that has a new name: what is made by the new one is of it, too."""

    def __instancecheck__(cls, instance: object) -> bool:
        return cls.__subclasscheck__(type(instance))

    def __subclasscheck__(cls, kind: type) -> bool:
        word: type | None = vars(cls).get("new_word")  # of this class, not of one behind it
        return super().__subclasscheck__(kind) if word is None else issubclass(kind, word)


class Later(Retry, metaclass=_Renamed):
    """The old word for `Retry`. Its time has no limit, and its values are checked when it is used.

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
    """The old word for `Reject`. Its reason is checked when it is used.

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


OLD_WORDS: dict[str, type[Retry] | type[Reject]] = {"Later": Later, "Dead": Dead}


def old_word(module: str, name: str) -> type[Retry] | type[Reject]:
    """Return what an old name stands for, and warn whoever asks for it.

    To be called by `__getattr__` of a module that had the name.
    """
    word = OLD_WORDS[name]
    # An import from a package looks for the name first, and then takes it: one warning is enough.
    if sys._getframe(2).f_globals.get("__name__") != "importlib._bootstrap":
        text = f"{module}.{name} is an old name: say {word.__base__.__name__}"  # type: ignore[union-attr]
        warnings.warn(text, DeprecationWarning, stacklevel=3)
    return word
