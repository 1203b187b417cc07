"""The TLS of a server: its certificate, which is read again when its files change, and figures.

Several listeners of a process share one object. It knows nothing of what they speak.
"""

import asyncio
import math
import ssl
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from reliable_mq.errors import ConfigurationError
from reliable_mq.line_limit import limited_log
from reliable_mq.runtime.tls_contexts import (
    NOT_VALID_YET,
    Examined,
    Signature,
    examine,
    server_context,
    signature_of,
)
from reliable_mq.runtime.tls_settings import TlsMode, TlsSettings
from reliable_mq.telemetry import broker_events

log = limited_log(__name__)

HANDSHAKE_SECONDS = 10.0
"""A handshake that takes longer is given up."""
WATCH_SECONDS = 1.0
"""How often the files of the certificate are looked at."""
# Everybody can begin a handshake, and a step of one takes up to some milliseconds (with an RSA key
# of 4,096 bits). So all steps of one turn of the loop have this time. The next steps wait twice as
# long as these took: a flood of handshakes has a third of the loop's time.
_TURN_SECONDS = 0.002
_REST = 2

_EXPIRED = "certificate has expired"  # OpenSSL's words

# Outcomes of handshakes, as a metric has them.
DONE: Final = "done"
FAILED: Final = "failed"
GIVEN_UP: Final = "given_up"
PLAIN: Final = "plain"
OUTCOMES = (DONE, FAILED, GIVEN_UP, PLAIN)


class ServerTls:
    """What the listeners of a process need to accept encrypted connections.

    Invariant X3: `context` is made from the newest files that could be used together. While steps
    of handshakes wait, a turn is due.

    Args:
        settings: the mode and the files.
        handshake_seconds: after so many seconds a handshake is given up.
        clock: returns the time, in seconds since the epoch.

    Raises:
        ConfigurationError: when a file cannot be used.
    """

    def __init__(
        self,
        settings: TlsSettings,
        handshake_seconds: float = HANDSHAKE_SECONDS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self.handshake_seconds = handshake_seconds
        self.context: ssl.SSLContext | None = None  #: None: there is no certificate
        self.expires_at = 0.0  #: of the certificate, seconds since the epoch; 0.0: unknown
        self.outcomes: Counter[str] = Counter(dict.fromkeys(OUTCOMES, 0))
        self.behind_size = 0  #: bytes that have come and wait to be decrypted, of all connections
        self._loaded: Signature = ()  # of the files in use
        self._refused: Signature = ()  # of files that cannot be used; they were told
        self._usable_at = math.inf  # when these may be used: their certificate is not valid yet
        self._is_end_told = False  # whether the log says that the certificate has expired
        self._seen: Signature = ()  # at the last look
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_turn_due = False
        self._rests_until = 0.0  # before this time, no step begins
        self._next_look: asyncio.TimerHandle | None = None
        if settings.is_serving:
            self._begin()

    def _begin(self) -> None:
        """Read the files for the first time.

        A certificate that is expired or not valid yet is told loudly, and used, as Apache's broker
        does. A broker that refuses to start cannot be reached by anybody, and its messages wait.
        Such a certificate lets in nobody whom a valid one would not.
        """
        self._seen = signature_of(self.settings.server.paths)
        path = self.settings.server.cert
        context = server_context(self.settings)
        examined = examine(context, path)
        self._take(context, examined, self._seen)
        if examined.fault:
            self._is_end_told = examined.expires_at <= self._clock()
            broker_events.TLS_CERTIFICATE_DOUBTFUL.log(log, path=path, problem=examined.fault)

    @property
    def is_enforcing(self) -> bool:
        """Whether plain connections are refused."""
        return self.settings.mode is TlsMode.ENFORCING

    @property
    def decides_by_first_byte(self) -> bool:
        """Whether the first byte says if a connection is encrypted; else all are plain."""
        return self.context is not None

    def watch(self) -> None:
        """Look at the files from now on, on the running loop, until `close`."""
        if self.context is not None and self._next_look is None:
            self._look_later()

    def close(self) -> None:
        """Look at the files no more."""
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def _look_later(self) -> None:
        self._next_look = asyncio.get_running_loop().call_later(WATCH_SECONDS, self._look)

    def _look(self) -> None:
        self._look_later()
        self.look_once()
        self.note_end()

    def note_end(self) -> None:
        """Tell once that the certificate in use has expired. Connections go on with it."""
        if not self._is_end_told and self.expires_at and self._clock() >= self.expires_at:
            self._is_end_told = True
            path = self.settings.server.cert
            broker_events.TLS_CERTIFICATE_DOUBTFUL.log(log, path=path, problem=_EXPIRED)

    def look_once(self) -> bool:
        """Read the files again if they have changed; return whether they are in use now.

        Certificate and key are two files, and somebody replaces one after the other. So files that
        have changed since the last look are left for the next one. Files that cannot be used are
        told once, and the certificate in use stays.
        """
        found = signature_of(self.settings.server.paths)
        is_settled, self._seen = found == self._seen, found
        is_known = found == self._loaded or (
            found == self._refused and self._clock() < self._usable_at
        )
        if is_known or not is_settled:
            return False
        path = self.settings.server.cert
        try:
            context = server_context(self.settings)
            examined = examine(context, path)
        except (ConfigurationError, OSError) as error:  # OSError: OpenSSL's, or a file has gone
            self._refuse(found, error)
            return False
        if examined.fault:
            # OpenSSL's clock may be some ms behind: so its word counts, and it is asked again.
            is_early = examined.fault == NOT_VALID_YET
            self._refuse(found, f"{path}: {examined.fault}")
            self._usable_at = examined.begins_at if is_early else math.inf
            return False
        self._take(context, examined, found)
        broker_events.TLS_RELOADED.log(log, path=path)
        return True

    def _take(self, context: ssl.SSLContext, examined: Examined, found: Signature) -> None:
        self.context, self.expires_at = context, examined.expires_at
        self._loaded, self._refused = found, ()
        self._is_end_told = False

    def _refuse(self, found: Signature, why: object) -> None:
        if found == self._refused:  # told already
            return
        self._refused, self._usable_at = found, math.inf
        broker_events.TLS_NOT_RELOADED.log(log, error=why)

    def take_step(self, step: Callable[[], None]) -> None:
        """Call a step of a handshake in a later turn, after those that wait."""
        self._waiting.append(step)
        if not self._is_turn_due:
            self._schedule_turn()

    def _schedule_turn(self) -> None:
        self._is_turn_due = True
        loop, rest = asyncio.get_running_loop(), self._rests_until - time.monotonic()
        if rest > 0:
            loop.call_later(rest, self._run_turn)
        else:
            loop.call_soon(self._run_turn)

    def _run_turn(self) -> None:
        self._is_turn_due = False
        began = now = time.monotonic()
        while self._waiting and now < began + _TURN_SECONDS:
            self._waiting.popleft()()
            now = time.monotonic()
        self._rests_until = now + _REST * (now - began)
        if self._waiting:
            self._schedule_turn()
