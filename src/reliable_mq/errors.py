"""Every error of this package, drawn as one tree. It answers: whose fault, and may I try again?

    ReliableMQError
    ├── UsageError             yours; the call can never work as it is
    │   ├── ConfigurationError     yours; a setting is wrong, the text says which and what to do
    │   ├── ForkedClient           yours; a client was used in another process than made it
    │   └── ApplicationBroken      yours; a module raised something when it was imported
    ├── MessageRefused         yours; the message breaks a limit or names something illegal
    │   └── NoTimers               the broker is too old to show a message at a given time
    ├── CallRefused            an idempotent function was not called
    │   ├── KeyInvalid             yours; what should be its key is none
    │   ├── KeyReused              yours; the key stands for another request
    │   └── CallRunning            theirs; a call with this key runs, try again
    ├── Unavailable            theirs; nothing is wrong with the call, try again
    │   ├── ConnectionLost         the peer went away
    │   ├── RequestTimeout         no answer in time; it may or may not have happened
    │   │   └── ReplyTimeout           the request was stored, nobody replied in time
    │   ├── TooManyInFlight        yours or theirs; you send faster than brokers take it
    │   ├── NotSent                an earlier message of the same queue failed; this one waits
    │   ├── HalfRolledBack         a check-back ended a half; run its transaction again
    │   └── NoRoute                the name servers know no broker for the topic (yet)
    ├── RemoteError            the peer answered with a code and a remark
    │   ├── BrokerBusy             theirs; too much to do just now, try again
    │   ├── NotPermitted           yours; these credentials, or anybody's, may not do that
    │   ├── NotFound               yours; there is no such topic, group, or message
    │   │   └── FoundNowhere           … at any broker of the cluster
    │   └── Refused                yours; the request is nothing that the peer takes
    ├── ProtocolError          theirs; the bytes are not what the protocol says
    │   ├── FrameError             a frame that cannot be cut from the stream
    │   └── RecordError            bytes that are no stored record
    ├── LeaseLost              yours; handling took longer than its lease, it comes again
    ├── AddressRefused         the system does not let us listen there; the text says why
    ├── StoreError             the store directory cannot be used
    │   ├── StoreInUse             another process holds it
    │   └── StoreCorrupt           a file says what it cannot say; names file and offset
    └── InvariantBroken        ours; a bug, please report it

`retryable` on the class says whether the same call may succeed later.
"""

_QUERY_NOT_FOUND = 22


def words_of(error: BaseException) -> str:
    """Return the type and the text of an error, also of one whose text cannot be had."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - of the error's own making
        return f"{type(error).__name__}, which does not say what it is"


class ReliableMQError(Exception):
    """Something in reliable_mq went wrong.

    `tries` says of a message that could not be sent how many requests were made for it.
    """

    retryable = False
    tries: int = 0


class UsageError(ReliableMQError):
    """The call can never work as it is."""


def closed_meanwhile(what: str = "client") -> "ConnectionLost":
    """Return what is raised when a client is closed while somebody waits for what it was asked."""
    return ConnectionLost(
        f"this {what} was closed meanwhile: what was asked may be done all the same"
    )


def closed(what: str) -> UsageError:
    """Return what is raised when a "client" or "consumer" is used after its end."""
    return UsageError(f"this {what} is closed: make a new one")


class ConfigurationError(UsageError):
    """A setting is wrong."""


class ForkedClient(UsageError):
    """A client was used in a forked process. Connections cannot be shared: make a client there."""


class ApplicationBroken(UsageError):
    """The module of an application raised something when it was imported.

    `own` is what it raised, with a traceback that begins in that module.
    """

    def __init__(self, text: str, own: BaseException) -> None:
        super().__init__(text)
        self.own = own


class MessageRefused(ReliableMQError):
    """The message breaks a limit or names something illegal."""


class NoTimers(MessageRefused):
    """The broker is older than 5.0: it would show a message with a time at once."""


class CallRefused(ReliableMQError):
    """An idempotent function was not called."""


class KeyInvalid(CallRefused):
    """A value that is no key: None, empty, or of a type that two sides may write differently."""


class KeyReused(CallRefused):
    """The key was used before, with other arguments."""


class CallRunning(CallRefused):
    """A call with this key is running; `retry_after` seconds are left of its lease."""

    retryable = True

    def __init__(self, text: str, retry_after: float) -> None:
        super().__init__(text)
        self.retry_after = retry_after


class Unavailable(ReliableMQError):
    """The other side cannot be reached or does not answer."""

    retryable = True


class ConnectionLost(Unavailable):
    """The peer went away before it answered."""


class RequestTimeout(Unavailable):
    """No answer came in time: the request may or may not have taken effect."""


class ReplyTimeout(RequestTimeout):
    """A request was stored, and no client replied to it in time; it may be handled all the same."""


class TooManyInFlight(Unavailable):
    """So many messages are on their way that this one found no place in time. It was not sent."""


class NotSent(Unavailable):
    """The message was held back, because an earlier one of its queue could not be sent."""


class HalfRolledBack(Unavailable):
    """A broker asked for a half message before its stub was written, and heard that it is over."""


class NoRoute(Unavailable):
    """The name servers know no broker for the topic."""


class RemoteError(ReliableMQError):
    """The peer answered with an error.

    `code` is a response code of the remoting protocol, `remark` the peer's own words. The classes
    below it say what is known of a code; one that says nothing of whose fault it is stays here.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"code {code}: {remark}")
        self.code = code
        self.remark = remark


class BrokerBusy(RemoteError):
    """The broker has too much to do: the same request may be taken in a moment."""

    retryable = True


class NotPermitted(RemoteError):
    """The topic, the group or the credentials do not allow that."""


class NotFound(RemoteError):
    """The peer knows no such topic, group, message or offset."""


class FoundNowhere(NotFound):
    """All brokers were asked, and none knows such a topic, group, message or offset."""

    def __init__(self, text: str) -> None:
        super().__init__(_QUERY_NOT_FOUND, text)
        self.args = (text,)  # these are our words, and no peer's


class Refused(RemoteError):
    """The peer read the request and takes none like it."""


class ProtocolError(ReliableMQError):
    """The peer's bytes are not what the protocol says."""


class FrameError(ProtocolError):
    """A frame cannot be cut from the stream; the connection is of no further use."""


class RecordError(ProtocolError):
    """These bytes are no stored record."""


class LeaseLost(ReliableMQError):
    """A message was not in the caller's hands any more; it is delivered again, or settled."""


class AddressRefused(ReliableMQError):
    """The system does not let this process listen at an address."""


class StoreError(ReliableMQError):
    """The store directory cannot be used."""


class StoreInUse(StoreError):
    """Another process holds the store directory."""


class StoreCorrupt(StoreError):
    """A file of the store says what it cannot say; the text names file and offset."""


class InvariantBroken(ReliableMQError):
    """A promise of the code to itself does not hold. This is a bug."""
