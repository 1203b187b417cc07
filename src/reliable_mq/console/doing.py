"""The pages of doing: choose → preview → start → progress, which can be cancelled.

The work goes on when nobody looks at it, also when the session of its person has ended.
"""

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from reliable_mq.console.all_deeds import DEED_BY_NAME
from reliable_mq.console.asyncio_threads import in_thread, threaded
from reliable_mq.console.deeds import (
    MARKED_MAX,
    PREVIEW_SECONDS,
    RATE,
    RATE_MAX,
    WHY_LENGTH_MAX,
    Chosen,
    Deed,
    NothingToDo,
    Sealed,
    order_of,
    typed_fault,
)
from reliable_mq.console.deeds_cluster import END, START
from reliable_mq.console.deeds_copies import COPY_DEAD_LETTER, letter_to_copy, text_of
from reliable_mq.console.guard import form_of, must_be
from reliable_mq.console.lists import RowList, WantedPage, is_number, wanted_of
from reliable_mq.console.rendering import Renderer
from reliable_mq.console.sessions import Person, Seal
from reliable_mq.console.sources import Answer, ConsoleSources, ask
from reliable_mq.console.users import Role
from reliable_mq.console.work import Works
from reliable_mq.errors import ConfigurationError, UsageError
from reliable_mq.plain_text import printable
from reliable_mq.reconcile.moments import parse_moment
from reliable_mq.sensitive import MASK

LOOK_SECONDS = 30.0
ID_LENGTH_MAX = 600
_MORE = "more-"
_NUMBER = re.compile("[0-9a-f]{32}")

T = TypeVar("T")


class Doing:
    """The pages of doing.

    Args:
        sources: what is changed.
        render: makes the pages.
        seal: signs previews.
        works: the work that is under way.
    """

    def __init__(self, sources: ConsoleSources, render: Renderer, seal: Seal, works: Works) -> None:
        self._sources = sources
        self._render = render
        self._seal = seal
        self._works = works

    def routes(self) -> list[BaseRoute]:
        """Return the addresses and what answers there."""
        return [
            Route("/do", self.preview, methods=["POST"]),
            Route("/do/start", self.start, methods=["POST"]),
            Route("/dead-letters/copy", threaded(self.copy)),
            Route("/works", threaded(self.works)),
            Route("/works/{number}", threaded(self.work)),
            Route("/works/{number}/live", threaded(self.work_live)),
            Route("/works/{number}/cancel", self.cancel, methods=["POST"]),
        ]

    async def preview(self, request: Request) -> Response:
        """Show what a deed would do."""
        form = await form_of(request)
        deed = _deed(_one(form, "deed"))
        person = must_be(request, deed.role)
        chosen = self._chosen(deed, form)
        look = partial(_said, partial(deed.look, self._sources, chosen))
        answer: Answer[Any] = await in_thread(ask, look, LOOK_SECONDS)
        if isinstance(answer.value, str) or answer.value is None:
            text = answer.fault or str(answer.value)
            status = 502 if answer.fault else 409
            if deed is COPY_DEAD_LETTER:
                return self._copy_again(request, chosen.more, text, status)
            return self._render.page(
                request, "refused.html", status, title=deed.title, text=text, back=deed.place
            )
        sealed = Sealed(
            number=secrets.token_hex(16),
            made=time.time(),
            deed=deed.name,
            user=person.name,
            chosen=chosen,
            preview=answer.value,
        )
        return self._preview_page(request, deed, sealed, "", {}, 200)

    def _chosen(self, deed: Deed, form: Mapping[str, list[str]]) -> Chosen:
        query: dict[str, str] = {}
        more = {
            name.removeprefix(_MORE): values[0].replace("\r\n", "\n")
            for name, values in form.items()
            if name.startswith(_MORE)
        }
        for name in deed.moments:
            more[name] = _fixed_moment(name, more.get(name, "").strip())
        database = _one(form, "database") or next(iter(self._sources.databases))
        if database not in self._sources.databases:
            raise HTTPException(400, "there is no such database")
        ids: Sequence[str] = ()
        if deed.of_list is not None:
            query = _fixed(deed.of_list, _one(form, "query"), list(self._sources.databases))
            scope = _one(form, "scope")
            if scope not in ("marked", "all"):
                raise HTTPException(400, "say whether the marked rows or all that match are meant")
            ids = [*map(unquote, form.get("id", []))] if scope == "marked" else ()
            if scope == "marked" and not ids:
                raise HTTPException(400, "no row is marked: mark rows, or take all that match")
            if any(len(each) > ID_LENGTH_MAX or "\0" in each for each in ids):
                raise HTTPException(400, "no row has such a name")
            if len(ids) > MARKED_MAX:
                raise HTTPException(400, f"at most {MARKED_MAX} rows can be marked")
        return Chosen(database=database, query=query, ids=list(dict.fromkeys(ids)), more=more)

    def _preview_page(
        self,
        request: Request,
        deed: Deed,
        sealed: Sealed,
        fault: str,
        given: Mapping[str, str],
        status: int,
    ) -> Response:
        return self._render.page(
            request,
            "preview.html",
            status,
            deed=deed,
            preview=sealed.preview,
            made=datetime.fromtimestamp(sealed.made, UTC),
            chosen=sealed.chosen,
            sealed=self._seal.sealed("preview", msgspec.json.encode(sealed)),
            fault=fault,
            name=deed.typed(self._sources, sealed.chosen) if deed.typed is not None else "",
            typed=given.get("typed", ""),
            why=given.get("why", ""),
            rate=given.get("rate", str(RATE)),
            rate_max=RATE_MAX,
            why_max=WHY_LENGTH_MAX,
            back=deed.place,
        )

    def copy(self, request: Request) -> Response:
        """Show the payload of a dead letter in a form, to send a changed copy of it."""
        must_be(request, Role.OPERATOR)
        named = {name: request.query_params.get(name, "") for name in ("group", "id")}
        if any("\0" in each or len(each) > ID_LENGTH_MAX for each in named.values()):
            raise HTTPException(400, "no dead letter has such a name")
        answer: Answer[Any] = ask(
            partial(_said, partial(letter_to_copy, self._sources, Chosen(more=named))), LOOK_SECONDS
        )
        letter = answer.value
        if isinstance(letter, str) or letter is None:
            text, status = answer.fault or str(letter), 502 if answer.fault else 404
            title = "Send a changed copy"
            return self._render.page(
                request, "refused.html", status, title=title, text=text, back="/dead-letters"
            )
        return self._render.page(
            request,
            "copy.html",
            group=letter.group,
            message_id=letter.message.message_id,
            reason=letter.reason,
            body=text_of(self._sources, letter),
            is_masked=bool(self._sources.mq._declared.sensitive_of(letter.topic)),
            fault="",
        )

    def _copy_again(
        self, request: Request, given: Mapping[str, str], fault: str, status: int
    ) -> Response:
        """Show the form with what a person has typed, and what is wrong with it."""
        body = given.get("body", "")
        return self._render.page(
            request,
            "copy.html",
            status,
            group=given.get("group", ""),
            message_id=given.get("id", ""),
            reason="",
            body=body,
            is_masked=MASK in body,
            fault=fault,
        )

    async def start(self, request: Request) -> Response:
        """Begin the work of a preview; lead to its page."""
        form = await form_of(request)
        sealed = self._opened(_one(form, "sealed"))
        deed = _deed(sealed.deed)
        person = must_be(request, deed.role)
        if person.name != sealed.user:
            raise HTTPException(403, "this preview is another person's: make one of your own")
        given = {name: _one(form, name).strip() for name in ("why", "rate", "typed")}
        fault = _why_fault(given["why"]) or _rate_fault(given["rate"])
        fault = fault or typed_fault(deed, self._sources, sealed.chosen, given["typed"])
        if fault:
            return self._preview_page(request, deed, sealed, fault, given, 400)
        order = order_of(sealed, deed, person.name, given["why"], int(given["rate"]))
        try:
            self._works.start(order, lambda order: deed.parts(self._sources, sealed, order))
        except UsageError as error:
            return self._preview_page(request, deed, sealed, str(error), given, 409)
        root = request.scope.get("root_path", "")
        return RedirectResponse(f"{root}/works/{sealed.number}", 303)

    def _opened(self, text: str) -> Sealed:
        body = self._seal.opened("preview", text)
        if body is None:
            raise HTTPException(
                400, "this preview was not made by this console, or it was restarted: make it again"
            )
        try:
            sealed = msgspec.json.decode(body, type=Sealed)
        except msgspec.DecodeError as error:
            raise HTTPException(400, "this preview is of another version: make it again") from error
        if time.time() - sealed.made > PREVIEW_SECONDS:
            raise HTTPException(409, "this preview is older than an hour: make it again")
        return sealed

    def works(self, request: Request) -> Response:
        """List the work of this console."""
        return self._render.page(request, "works.html", works=self._works.all())

    def work(self, request: Request) -> Response:
        """Show how far work is."""
        return self._work_page(request, "work.html")

    def work_live(self, request: Request) -> Response:
        """Return the part of its page that changes."""
        return self._work_page(request, "work_live.html")

    def _work_page(self, request: Request, template: str) -> Response:
        number = request.path_params["number"]
        found = self._works.get(number) if _NUMBER.fullmatch(number) else None
        progress = None if found is None else found.progress()
        if request.query_params.get("format") == "json":
            if progress is None:
                return JSONResponse({"error": "this console knows no such work"}, 404)
            return JSONResponse(
                {
                    "number": number,
                    "title": progress.order.title,
                    "state": progress.state.value,
                    "total": progress.order.total,
                    "counts": {each.value: count for each, count in progress.counts.items()},
                }
            )
        status = 200 if progress is not None else 404
        person: Person = request.state.person
        return self._render.page(
            request,
            template,
            status,
            number=number,
            work=progress,
            may_cancel=progress is not None and _may_cancel(person, progress.order.actor),
        )

    async def cancel(self, request: Request) -> Response:
        """Let the part that is under way be the last one."""
        await form_of(request)
        number = request.path_params["number"]
        found = self._works.get(number)
        if found is None:
            raise HTTPException(404, "this console knows no such work")
        person = must_be(request, Role.OPERATOR)
        if not _may_cancel(person, found.order.actor):
            raise HTTPException(403, "an operator cancels work of their own; an admin, all")
        found.cancel()
        root = request.scope.get("root_path", "")
        return RedirectResponse(f"{root}/works/{number}", 303)


def _may_cancel(person: Person, actor: str) -> bool:
    return person.role.may(Role.ADMIN) or (person.role.may(Role.OPERATOR) and person.name == actor)


def _one(form: Mapping[str, list[str]], name: str) -> str:
    return (form.get(name) or [""])[0]


def _deed(name: str) -> Deed:
    deed = DEED_BY_NAME.get(name)
    if deed is None:
        raise HTTPException(400, "there is no such action")
    return deed


def _said(look: Callable[[], T]) -> T | str:
    """Return what is looked at, or the sentence that says why nothing can be done."""
    try:
        return look()
    except (ConfigurationError, UsageError, NothingToDo) as error:
        return str(error)


def _fixed(kind: RowList, text: str, databases: Sequence[str]) -> dict[str, str]:
    """Return a filter that means the same rows later: "-1h" becomes a time.

    Raises:
        HTTPException: 400: the filter cannot be used.
    """
    query = {
        name: value
        for name, value in parse_qsl(text)
        if name not in ("cursor", "limit", "format", "database")
    }
    try:
        wanted: WantedPage = wanted_of(kind, [*query.items()], databases)
    except ConfigurationError as error:
        raise HTTPException(400, str(error)) from error
    return query | {
        name: f"{value:%Y-%m-%dT%H:%M:%S.%f}"
        for name, value in wanted.values.items()
        if isinstance(value, datetime)
    }


def _fixed_moment(name: str, text: str) -> str:
    """Return a time that means the same later: "-1h" becomes a time of the calendar.

    Raises:
        HTTPException: 400: it is no time.
    """
    if not text or text in (START, END):
        return text
    try:
        moment = parse_moment(text, name, datetime.now(UTC))
    except ConfigurationError as error:
        raise HTTPException(400, printable(str(error), 300)) from error
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}"


def _why_fault(why: str) -> str:
    if not why:
        return "a reason is needed: it stands in the audit beside your name"
    if len(why) > WHY_LENGTH_MAX:
        return f"a reason has at most {WHY_LENGTH_MAX} characters"
    return ""


def _rate_fault(rate: str) -> str:
    return "" if is_number(rate, RATE_MAX) else f"the rate is 1 to {RATE_MAX} rows a second"
