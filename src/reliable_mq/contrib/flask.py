"""Flask: an extension with a transaction for each request, health endpoints and commands.

    mq = ReliableMQ("shop", …)
    messages = FlaskMQ(mq)                  # with Flask-SQLAlchemy: FlaskMQ(mq, db=db)

    def create_app() -> Flask:
        app = Flask(__name__)
        messages.init_app(app)
        return app

    @app.post("/orders")
    def place() -> tuple[str, int]:
        tx = messages.tx
        tx.session.add(Order(item="tea"))
        tx.send("orders", {"item": "tea"})
        return "", 201

**When it commits.** `messages.tx` begins the request's transaction at its first use. It is
committed after the view has returned, before the response is sent, if the status is below 400. It
is rolled back at 400 and above, and when the view raises, whatever an error handler answers. If the
commit fails, the client gets 500. If the connection to the client breaks after the commit, order
and message exist although the client got no answer. The body of a streamed response is made after
the commit.

`with messages.transaction() as tx:` is an explicit transaction instead.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import wraps
from importlib.util import find_spec
from inspect import iscoroutinefunction
from typing import Any, TypeVar, Unpack, get_args, overload

from sqlalchemy.orm import Session

from reliable_mq.app.application import ReliableMQ
from reliable_mq.app.thread_signals import stop_on_signal
from reliable_mq.cli.log_options import write_log
from reliable_mq.consume.handler_types import ConsumerOptions, F, PayloadHandlers
from reliable_mq.contrib.health import Health, liveness, readiness
from reliable_mq.contrib.request_transaction import request_transaction
from reliable_mq.database.sql_handler_session import refuse_second_transaction, running_session
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.extras import extra_of
from reliable_mq.outbox.calls_apart import outlives, running_apart
from reliable_mq.outbox.sql_transaction import Transaction
from reliable_mq.telemetry.log_choices import LogFormat, LogLevel
from reliable_mq.topic import Topic

with extra_of("reliable_mq.contrib.flask"):
    import click
    from flask import Blueprint, Flask, Response, current_app, has_request_context, jsonify, request
    from flask.cli import AppGroup

__all__ = ["FlaskMQ"]

T = TypeVar("T")

# Keys of the environ of a request. `g` may outlive it: tests push one application context for all.
_OPEN = "reliable_mq.transaction"
_ANSWERED = "reliable_mq.answered"
_REFUSED = 400
_EXTENSION = "reliable_mq"


class FlaskMQ:
    """Messaging of a Flask application, made by a factory or not.

    Args:
        mq: the application's messaging.
        app: the Flask application; None: call `init_app` later.
        db: the extension of Flask-SQLAlchemy. The transactions are then those of `db.session`, so
            its models and the messages are in one commit. Its database must be one of `mq`.
        health: the path of `/live` and `/ready`, see the module `health`; "": no such endpoints.
    """

    def __init__(
        self, mq: ReliableMQ, app: Flask | None = None, *, db: Any = None, health: str = "/health"
    ) -> None:
        if not isinstance(mq, ReliableMQ):
            raise UsageError(f"FlaskMQ({type(mq).__name__}): give it your ReliableMQ")
        self.mq = mq
        self._db = db
        self._health = health
        self._app: Flask | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Register the ends of requests, the health endpoints, and `flask reliable-mq`.

        Raises:
            UsageError: the application has this extension already.
        """
        if _EXTENSION in app.extensions:
            raise UsageError(f"{app!r} has a FlaskMQ already")
        app.extensions[_EXTENSION] = self
        self._app = app
        app.after_request(self._end)
        app.teardown_request(self._roll_back)
        self._roll_back_before_error_handlers(app)
        if self._health:
            app.register_blueprint(self._health_blueprint(self._health))
        app.cli.add_command(self._commands())

    def _roll_back_before_error_handlers(self, app: Flask) -> None:
        """Roll back when a view raises: its error handler may answer with a page or a redirect."""
        handle: Callable[..., Any] = app.handle_user_exception

        def handle_after_rollback(*given: Any, **named: Any) -> Any:
            self._roll_back()
            return handle(*given, **named)

        app.handle_user_exception = handle_after_rollback  # type: ignore[method-assign]

    @property
    def tx(self) -> Transaction:
        """The transaction of this request; it begins at its first use.

        Raises:
            UsageError: the response is being sent, no request is being handled, or `init_app` was
                not called. Nothing would commit it. Or this is an idempotent function, whose result
                would be stored before.
        """
        if not has_request_context():
            raise UsageError(
                "no request is being handled, so nothing would commit messages.tx: write `with "
                "messages.transaction() as tx:`; in a consumer ask for `session: Session`, and "
                "write `with mq.transaction(session) as tx:`"
            )
        if current_app.extensions.get(_EXTENSION) is not self:
            raise UsageError(
                f"{current_app.name} does not know this FlaskMQ, so nothing would commit "
                "messages.tx: call messages.init_app(app)"
            )
        if _ANSWERED in request.environ:
            raise UsageError(
                "the response is being sent, so nothing would commit messages.tx: send in the "
                "view, or write `with messages.transaction() as tx:`"
            )
        call = running_apart()
        if call is not None:
            raise outlives(call.name)
        opened: _RequestTransaction | None = request.environ.get(_OPEN)
        if opened is None:
            opened = request.environ[_OPEN] = _RequestTransaction(self.mq, self._own_session())
        return opened.tx

    def _own_session(self) -> Session | None:
        return None if self._db is None else self._db.session()

    def transaction(
        self, *, database: str | None = None, half: bool = False
    ) -> AbstractContextManager[Transaction]:
        """Return an explicit block, `with messages.transaction() as tx:`. It commits at its end.

        With Flask-SQLAlchemy it is a block of `db.session`, and commits what that session has done
        before, too. Within a block of `messages.tx` or `db.session.begin()`, that one commits.

        Args:
            database: the name of the database; None: that of `db.session`, or "main".
            half: see `ReliableMQ.transaction`.

        Raises:
            UsageError: a consumer runs here, whose effect is on the same database: its messages
                belong into `mq.transaction(session)`, with the session that the handler asks for.
        """
        session = self._own_session()
        if session is not None and running_session() is not None:
            name = self.mq.databases.name_of(session) if database is None else database
            refuse_second_transaction(self.mq.databases[name].url)
        if session is not None and has_request_context() and _OPEN in request.environ:
            return self.mq.transaction(session, database=database, half=half)
        return request_transaction(self.mq, session, database=database, half=half)

    @overload
    def consumer(
        self, topic: Topic[T], **options: Unpack[ConsumerOptions]
    ) -> PayloadHandlers[T]: ...
    @overload
    def consumer(self, topic: str, **options: Unpack[ConsumerOptions]) -> Callable[[F], F]: ...
    def consumer(self, topic: str | Topic[Any], **options: Any) -> Callable[[Any], Any]:
        """Register a handler as `ReliableMQ.consumer` does; it runs in an application context.

        An `async def` runs on a loop of its own, in a thread, as async views of Flask do. So it
        takes a `Session`.

        Raises:
            ConfigurationError: an `async def` needs a package that is not installed. Also as
                `ReliableMQ.consumer`.
            UsageError: as `ReliableMQ.consumer`.
        """

        def register(function: Any) -> Any:
            if iscoroutinefunction(function) and find_spec("asgiref") is None:
                raise ConfigurationError(
                    f"handler {function.__name__}: an async def needs asgiref; "
                    "pip install 'flask[async]'"
                )

            @wraps(function)
            def handler(*given: Any, **named: Any) -> Any:
                if self._app is None:
                    raise UsageError("FlaskMQ has no application: call init_app(app)")
                with self._app.app_context():
                    return self._app.ensure_sync(function)(*given, **named)

            self.mq.consumer(topic, **options)(handler)
            return function

        return register

    def _end(self, response: Response) -> Response:
        opened: _RequestTransaction | None = request.environ.pop(_OPEN, None)
        if opened is not None:
            opened.end(keeps=response.status_code < _REFUSED)
        request.environ[_ANSWERED] = True
        return response

    def _roll_back(self, _error: BaseException | None = None) -> None:
        opened: _RequestTransaction | None = request.environ.pop(_OPEN, None)
        if opened is not None:
            with suppress(Exception):
                opened.end(keeps=False)

    def _health_blueprint(self, prefix: str) -> Blueprint:
        blueprint = Blueprint("reliable_mq_health", __name__, url_prefix=prefix)

        @blueprint.get("/live")
        def live() -> tuple[Response, int]:
            return _answered(liveness(self.mq))

        @blueprint.get("/ready")
        def ready() -> tuple[Response, int]:
            return _answered(readiness(self.mq))

        return blueprint

    def _commands(self) -> AppGroup:
        group = AppGroup("reliable-mq", help="Run the messaging of this application.")

        @group.command("run")
        @_logging
        def run(**log: Any) -> None:
            """Run the consumers until SIGTERM or SIGINT."""
            self._write_log(**log)
            self.mq.run()

        @group.command("resend")
        @_logging
        def resend(**log: Any) -> None:
            """Send unconfirmed messages again, until SIGTERM or SIGINT."""
            self._write_log(**log)
            with stop_on_signal() as stopped:
                try:
                    self.mq.resend_forever(stopped)
                finally:
                    self.mq.close()

        @group.command("create-tables")
        def create_tables() -> None:
            """Create the tables that are missing."""
            made = self.mq.create_tables()
            print("\n".join(made) or "all tables are there")

        return group

    def _write_log(self, log_format: LogFormat | None, log_level: LogLevel | None) -> None:
        """Write the log to standard error, unless the application has configured its own."""
        settings = self.mq.settings
        write_log(log_format or settings.log_format, log_level or settings.log_level)


def _logging(command: F) -> F:
    """Give a command the log options of `reliable-mq run`."""
    for name, kinds, text in (
        ("level", LogLevel, "Write log lines of this level and above."),
        ("format", LogFormat, "Write log lines as text, or as one JSON object each."),
    ):
        choice = click.Choice(get_args(kinds), case_sensitive=False)
        variable = f"RELIABLE_MQ_LOG_{name.upper()}"
        command = click.option(f"--log-{name}", type=choice, envvar=variable, help=text)(command)
    return command


class _RequestTransaction:
    """The transaction of one request.

    Args:
        mq: the application's messaging.
        session: the application's session; None: one of ours.
    """

    def __init__(self, mq: ReliableMQ, session: Session | None) -> None:
        self._block = request_transaction(mq, session)
        self.tx = self._block.__enter__()

    def end(self, *, keeps: bool) -> None:
        """Commit, or roll back."""
        if keeps:
            self._block.__exit__(None, None, None)
        else:
            self._block.__exit__(_Refused, _Refused(), None)


class _Refused(Exception):
    """The request is answered with an error, so nothing of it is kept."""


def _answered(health: Health) -> tuple[Response, int]:
    return jsonify(health.body), health.status
