"""The two addresses of a log-in at a provider: there, and back. Both are GETs of a browser.

What the browser has to bring back is in a cookie of its own, sealed: a log-in that another browser
has begun ends nowhere.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from reliable_mq.console.asyncio_threads import threaded
from reliable_mq.console.guard import OIDC_PATH, PageGuard, inside
from reliable_mq.console.http_oidc import (
    BACK,
    LOG_IN_SECONDS,
    BegunLogIn,
    OidcProvider,
    OidcRefused,
)
from reliable_mq.console.rendering import Renderer
from reliable_mq.console.sessions import Seal
from reliable_mq.errors import ConfigurationError, Unavailable

_PURPOSE = "oidc"


class OidcPages:
    """The pages of a log-in at a provider.

    Args:
        provider: who says who somebody is.
        render: makes the page that says why somebody does not get in.
        seal: signs what the browser keeps.
    """

    def __init__(self, provider: OidcProvider, render: Renderer, seal: Seal) -> None:
        self._provider = provider
        self._render = render
        self._seal = seal

    def routes(self) -> list[BaseRoute]:
        """Return the addresses and what answers there."""
        return [
            Route(OIDC_PATH, threaded(self.there), methods=["GET"]),
            Route(BACK, threaded(self.back), methods=["GET"]),
        ]

    def there(self, request: Request) -> Response:
        """Send a browser to the provider."""
        try:
            address, begun = self._provider.begin(inside(request.query_params.get("to", "")))
        except Unavailable as error:
            return self._refused(request, str(error), 502)
        response = RedirectResponse(address, 303)
        kept = self._seal.sealed(_PURPOSE, msgspec.json.encode(begun))
        self._keep(request, response, kept, int(LOG_IN_SECONDS))
        return response

    def back(self, request: Request) -> Response:
        """Begin the session of a browser that the provider has sent back."""
        guard: PageGuard = request.state.guard
        body = self._seal.opened(_PURPOSE, request.cookies.get(self._cookie_name, ""))
        answer = dict(request.query_params)
        try:
            kept = msgspec.json.decode(body, type=BegunLogIn) if body is not None else None
            # Before a try counts: any web site can send a browser here, without such a log-in.
            begun = self._provider.begun(kept, answer)
            if (wait := guard.begin_try(request)) > 0:
                return self._refused(request, f"too many tries: try again in {wait:.0f} s", 429)
            person = self._provider.finish(begun, answer)
            is_taken = guard.is_in_file(person.name)
        except OidcRefused as error:
            return self._refused(request, str(error), 403)
        except Unavailable as error:
            return self._refused(request, str(error), 502)
        except ConfigurationError:
            return self._refused(request, "the file of users cannot be read: see the log", 503)
        if is_taken:
            text = f"the file of users has a user {person.name}, who is another one"
            return self._refused(request, text, 403)
        guard.forget_try(request)
        response = RedirectResponse(request.scope.get("root_path", "") + (person.to or "/"), 303)
        guard.begin_by_oidc(request, person, response)
        self._keep(request, response, "", 0)
        return response

    @property
    def _cookie_name(self) -> str:
        return f"{self._seal.cookie_name}_oidc"

    def _keep(self, request: Request, response: Response, text: str, seconds: int) -> None:
        guard: PageGuard = request.state.guard
        path = request.scope.get("root_path", "") + OIDC_PATH
        response.headers.append(
            "Set-Cookie", guard.cookie_line(request, self._cookie_name, text, seconds, path)
        )

    def _refused(self, request: Request, why: str, status: int) -> Response:
        request.state.guard.note_refused()
        response = self._render.page(
            request, "log_in.html", status, to="", fault=why, name="", **request.state.guard.ways
        )
        self._keep(request, response, "", 0)
        return response
