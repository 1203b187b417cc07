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
is rolled back at 400 and above, and when the view raises. If the commit fails, the client gets 500.
If the connection to the client breaks after the commit, order and message exist although the client
got no answer. The body of a streamed response is made after the commit.

`with messages.transaction() as tx:` is an explicit transaction instead.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from reliable_mq.app.application import ReliableMQ
from reliable_mq.app.thread_signals import stop_on_signal
from reliable_mq.contrib.health import Health, liveness, readiness
from reliable_mq.errors import UsageError
from reliable_mq.extras import extra_of
from reliable_mq.outbox.sql_transaction import Transaction, TransactionScope

with extra_of("reliable_mq.contrib.flask"):
    from flask import Blueprint, Flask, Response, g, jsonify
    from flask.cli import AppGroup

__all__ = ["FlaskMQ"]

F = TypeVar("F", bound=Callable[..., Any])

_OPEN = "_reliable_mq"
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
        app.teardown_request(self._forget)
        if self._health:
            app.register_blueprint(self._health_blueprint(self._health))
        app.cli.add_command(self._commands())

    @property
    def tx(self) -> Transaction:
        """The transaction of this request; it begins at its first use.

        Raises:
            UsageError: the response is being sent, so nothing would commit it.
            RuntimeError: no request is being handled.
        """
        opened: _RequestTransaction | None = g.get(_OPEN)
        if opened is None:
            opened = _RequestTransaction(self.transaction, self._own_session())
            setattr(g, _OPEN, opened)
        return opened.tx

    def _own_session(self) -> Session | None:
        return None if self._db is None else self._db.session()

    def transaction(self, *, database: str | None = None, half: bool = False) -> TransactionScope:
        """Return an explicit block, `with messages.transaction() as tx:`.

        With Flask-SQLAlchemy it is a block of `db.session`. If that session is in a transaction
        already (a query begins one), the block joins it, and you must call `db.session.commit()`.
        """
        return self.mq.transaction(self._own_session(), database=database, half=half)

    def consumer(self, topic: str, *, group: str, **options: Any) -> Callable[[F], F]:
        """Register a handler as `ReliableMQ.consumer` does; it runs in an application context."""

        def register(function: F) -> F:
            @wraps(function)
            def handler(*given: Any, **named: Any) -> Any:
                if self._app is None:
                    raise UsageError("FlaskMQ has no application: call init_app(app)")
                with self._app.app_context():
                    return self._app.ensure_sync(function)(*given, **named)

            self.mq.consumer(topic, group=group, **options)(handler)
            return function

        return register

    def _end(self, response: Response) -> Response:
        opened: _RequestTransaction | None = g.pop(_OPEN, None)
        if opened is not None:
            opened.end(keeps=response.status_code < _REFUSED)
        return response

    def _forget(self, _error: BaseException | None) -> None:
        opened: _RequestTransaction | None = g.pop(_OPEN, None)
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
        def run() -> None:
            """Run the consumers until SIGTERM or SIGINT."""
            self.mq.run()

        @group.command("resend")
        def resend() -> None:
            """Send unconfirmed messages again, until SIGTERM or SIGINT."""
            with stop_on_signal() as stopped:
                try:
                    self.mq.resend_forever(stopped)
                finally:
                    self.mq.close()

        @group.command("create-tables")
        def create_tables() -> None:
            """Create the tables that are missing."""
            for name in self.mq.create_tables():
                print(name)

        return group


class _RequestTransaction:
    """The transaction of one request.

    Args:
        scope: makes its block.
        session: the application's session, which the block joins; None: the block has its own.
    """

    def __init__(self, scope: Callable[[], TransactionScope], session: Session | None) -> None:
        self._session = session
        if session is not None and not session.in_transaction():
            session.begin()
        self._scope = scope()
        self.tx = self._scope.__enter__()

    def end(self, *, keeps: bool) -> None:
        """Commit, or roll back."""
        error = None if keeps else _Refused()
        self._scope.__exit__(None if error is None else _Refused, error, None)
        if self._session is None:
            return
        if not keeps:
            self._session.rollback()
            return
        try:
            self._session.commit()
        except BaseException:
            self._session.rollback()
            raise


class _Refused(Exception):
    """The request is answered with an error, so nothing of it is kept."""


def _answered(health: Health) -> tuple[Response, int]:
    return jsonify(health.body), health.status
