"""Every error of this package, drawn as one tree. It answers: whose fault, and may I try again?

    ReliableMQError
    ├── UsageError             yours; the call can never work like this
    │   ├── ConfigurationError     yours; a setting is wrong, the text says which and what to do
    │   ├── ForkedClient           yours; a client was used in another process than its own
    │   └── ApplicationBroken      yours; a module raised an error during its import
    ├── MessageRefused         yours; the message breaks a limit or has an illegal name
    │   └── NoTimers               the broker is too old to deliver a message at a given time
    ├── CallRefused            an idempotent function was not called
    │   ├── KeyInvalid             yours; the value cannot be a key
    │   ├── KeyReused              yours; the key belongs to another request
    │   └── CallRunning            theirs; a call with this key is running, try again
    ├── Unavailable            theirs; nothing is wrong with the call, try again
    │   ├── ConnectionLost         the peer closed the connection, or it broke
    │   ├── RequestTimeout         no answer in time; it may or may not have happened
    │   │   └── ReplyTimeout           the request was stored, no consumer replied in time
    │   ├── TooManyInFlight        yours or theirs; you send faster than brokers accept
    │   ├── NotSent                an earlier message of the same queue failed; this one waits
    │   ├── HalfRolledBack         a check-back ended a half; run its transaction again
    │   └── NoRoute                the name servers know no broker for the topic (yet)
    ├── RemoteError            the peer answered with a code and a remark
    │   ├── BrokerBusy             theirs; the broker is overloaded now, try again
    │   ├── NotPermitted           yours; these credentials, or any credentials, may not do that
    │   ├── NotFound               yours; there is no such topic, group, or message
    │   │   └── FoundNowhere           … at any broker of the cluster
    │   └── Refused                yours; the peer never accepts such a request
    │       └── WrongPeer              yours; the address of a name server is another program's
    ├── ProtocolError          theirs; the bytes break the protocol
    │   ├── FrameError             a frame cannot be separated from the stream
    │   └── RecordError            the bytes are not a stored record
    ├── LeaseLost              yours; handling took longer than its lease, it is delivered again
    ├── AddressRefused         the system does not let us listen there; the text says why
    ├── StoreError             the store directory cannot be used
    │   ├── StoreInUse             another process uses it
    │   ├── StoreCorrupt           a file has impossible content; the text names file and offset
    │   ├── FormerMaster           another broker is the master of this name by now
    │   └── ReplicationError       the log of a master does not fit to this slave's
    │       └── LogsDiffer         they differ from an offset on; the text says what to do
    └── InvariantBroken        ours; a bug, please report it

`retryable` on the class says whether the same call may succeed later.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from reliable_mq.error_texts import text_of

_QUERY_NOT_FOUND = 22


def error_text(error: BaseException) -> str:
    """Return the type and the text of an error, even if its text cannot be read.

    An error of SQLAlchemy is that of the driver: its own text has the statement with its
    parameters, and a link. Values that a library quotes are left out, see `error_texts`.
    """
    if type(error).__module__ == "sqlalchemy.exc":
        error = getattr(error, "orig", None) or error
    try:
        text = text_of(error)
        return f"{type(error).__name__}: {text}" if text or not str(error) else type(error).__name__
    except Exception:  # noqa: BLE001 - the error's own __str__ may raise anything
        return f"{type(error).__name__}, whose text cannot be read"


class ReliableMQError(Exception):
    """Something in reliable_mq went wrong.

    `tries`: how many requests were made for a message that could not be sent. Default 0. `place`:
    the line of the application's module that raised it while it was imported; "": it is unknown.
    """

    retryable = False
    tries: int = 0
    place: str = ""


class UsageError(ReliableMQError):
    """The call can never work like this."""


def closed_meanwhile(what: str = "client") -> "ConnectionLost":
    """Return the error for a client that is closed while a caller waits for its answer."""
    return ConnectionLost(f"this {what} was closed meanwhile: the request may still take effect")


def closed(what: str) -> UsageError:
    """Return the error for a "client" or "consumer" that is used after its end."""
    return UsageError(f"this {what} is closed: make a new one")


class ConfigurationError(UsageError):
    """A setting is wrong."""


@contextmanager
def named_setting(name: str) -> Iterator[None]:
    """Name the setting or variable in the error of a value that is read within the block."""
    try:
        yield
    except ConfigurationError as error:
        raise ConfigurationError(f"{name}: {error}") from error


class ForkedClient(UsageError):
    """A client was used in a forked process. Make a new client there: it cannot be shared."""


class ApplicationBroken(UsageError):
    """The module of an application raised an error during its import.

    `own` is that error, with a traceback that begins in the module.
    """

    def __init__(self, text: str, own: BaseException) -> None:
        super().__init__(text)
        self.own = own


class MessageRefused(ReliableMQError):
    """The message breaks a limit or has an illegal name."""


class NoTimers(MessageRefused):
    """The broker is older than 5.0: it would make a message with a time visible at once."""


class CallRefused(ReliableMQError):
    """An idempotent function was not called."""


class KeyInvalid(CallRefused):
    """The value cannot be a key: None, empty, or of a type with several spellings."""


class KeyReused(CallRefused):
    """The key was used before, with other arguments."""


class CallRunning(CallRefused):
    """A call with this key is running; its lease ends in `retry_after` seconds."""

    retryable = True

    def __init__(self, text: str, retry_after: float) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class Unavailable(ReliableMQError):
    """The other side cannot be reached or does not answer."""

    retryable = True


class ConnectionLost(Unavailable):
    """The connection to the peer ended before the answer came."""


class RequestTimeout(Unavailable):
    """No answer came in time: the request may or may not have taken effect."""


class ReplyTimeout(RequestTimeout):
    """A request was stored, and no client replied in time; it may still be handled."""


class TooManyInFlight(Unavailable):
    """Too many messages are in flight: this one found no place in time. It was not sent."""


class NotSent(Unavailable):
    """The message was not sent, because an earlier message of its queue could not be sent."""


class HalfRolledBack(Unavailable):
    """A broker checked back on a half message before its stub was written: it was rolled back."""


class NoRoute(Unavailable):
    """The name servers know no broker for the topic."""


_ACCOUNT_REFUSED = ("check signature failed", "username cannot be null")
_ACCOUNT = "access_key and secret_key (RELIABLE_MQ_ACCESS_KEY, RELIABLE_MQ_SECRET_KEY)"


class RemoteError(ReliableMQError):
    """The peer answered with an error.

    `code` is a response code of the remoting protocol, `remark` the peer's text. The subclasses say
    whose fault a code is. A code that does not say so stays in this class. `pause_seconds`: how
    long the peer wants the same request to wait. Default 0.0: it does not say.
    """

    def __init__(self, code: int, remark: str) -> None:
        text = f"code {code}: {remark}"
        if any(each in remark for each in _ACCOUNT_REFUSED):
            text = f"{text.rstrip('.')}; set {_ACCOUNT} to those of a user of the broker"
        super().__init__(text)
        self.code = code
        self.remark = remark
        self.pause_seconds = 0.0


class BrokerBusy(RemoteError):
    """The broker is overloaded: the same request may succeed in a moment."""

    retryable = True


class NotPermitted(RemoteError):
    """The topic, the group or the credentials do not allow that."""


class NotFound(RemoteError):
    """The peer knows no such topic, group, message or offset."""


class FoundNowhere(NotFound):
    """All brokers were asked, and none knows such a topic, group, message or offset."""

    def __init__(self, text: str) -> None:
        super().__init__(_QUERY_NOT_FOUND, text)
        self.args = (text,)  # our own text, not a peer's remark


class Refused(RemoteError):
    """The peer read the request and never accepts such a request."""


class WrongPeer(Refused):
    """What answers at the address of a name server is no name server."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.args = (text,)  # our own text, not a peer's remark


class ProtocolError(ReliableMQError):
    """The peer's bytes break the protocol."""


class FrameError(ProtocolError):
    """A frame cannot be separated from the stream; the connection cannot be used any more."""


class RecordError(ProtocolError):
    """These bytes are not a stored record."""


class LeaseLost(ReliableMQError):
    """The caller no longer owns a message; the message is delivered again, or was settled."""


class AddressRefused(ReliableMQError):
    """The system does not let this process listen at an address."""


class StoreError(ReliableMQError):
    """The store directory cannot be used."""


class StoreInUse(StoreError):
    """Another process uses the store directory."""


class StoreCorrupt(StoreError):
    """A file of the store has impossible content; the text names file and offset."""


class ReplicationError(StoreError):
    """The log of a master cannot be copied to this slave; the text names offsets and both sides."""


class LogsDiffer(ReplicationError):
    """A slave and its master have different logs; the text says from where on, and what to do."""


class FormerMaster(StoreError):
    """Another broker is the master of this name by now; the text names both and their epochs."""


class InvariantBroken(ReliableMQError):
    """The code broke its own promise. This is a bug."""
