"""The pages, by address. Each reads its sources in a thread; none fails because one is away."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import BaseRoute, Route

from reliable_mq.app.thread_health import liveness, readiness
from reliable_mq.console import signs
from reliable_mq.console.all_deeds import deeds_of, template_of
from reliable_mq.console.all_lists import BY_NAME, ROW_LISTS
from reliable_mq.console.asyncio_threads import ExportResponse, in_thread, streamed, threaded
from reliable_mq.console.file_runs import report_of
from reliable_mq.console.guard import HEADERS, PageGuard, form_of, inside
from reliable_mq.console.lists import (
    FilterFault,
    RowList,
    WantedPage,
    all_rows,
    csv_lines,
    format_of,
    json_lines,
    wanted_of,
)
from reliable_mq.console.message_page import message_story
from reliable_mq.console.overview_figures import day_of, latency_panel, machine_signs
from reliable_mq.console.rendering import Renderer
from reliable_mq.console.saved_filters import saved_filters
from reliable_mq.console.search import TEXT_LENGTH_MAX, search
from reliable_mq.console.sources import ConsoleSources, ask
from reliable_mq.console.trace_links import trace_link
from reliable_mq.measuring.sql_throughput import Happening
from reliable_mq.names import DEAD_LETTER_PREFIX

Endpoint = Callable[[Request], Response]
EXPORT_SECONDS = 60.0
"""An export waits for its first page for this time: that may be all of it."""
LISTED = {each.name for each in ROW_LISTS}


class MinuteTrack(NamedTuple):
    """The counts of one station in the last hour, by minute, and in the last day, by hour."""

    name: str
    counts: list[int]
    age: float
    fault: str
    day: list[int]

    @property
    def last(self) -> int:
        """The count of the last minute that is over."""
        return self.counts[-2] if len(self.counts) > 1 else 0


class Pages:
    """All pages of a console.

    Args:
        sources: what they show.
        render: makes them.
        metrics: returns the text for Prometheus and its media type.
    """

    def __init__(
        self, sources: ConsoleSources, render: Renderer, metrics: Callable[[], tuple[bytes, str]]
    ) -> None:
        self._sources = sources
        self._render = render
        self._metrics = metrics

    def routes(self) -> list[BaseRoute]:
        """Return the addresses and what answers there."""
        return [
            Route("/", threaded(self.overview)),
            Route("/overview/live", threaded(self.overview_live)),
            Route("/find", threaded(self.find)),
            Route("/message", threaded(self.message)),
            Route("/log-in", threaded(self.log_in_page), methods=["GET"]),
            Route("/log-in", self.log_in, methods=["POST"]),
            Route("/log-out", self.log_out, methods=["POST"]),
            Route("/healthz", self.healthz),
            Route("/readyz", threaded(self.readyz)),
            Route("/metrics", threaded(self.metrics)),
            Route("/static/{name}", self.static),
            Route("/run-files/report", threaded(self.report)),
            *(Route(f"/{kind.name}", threaded(self._list_endpoint(kind))) for kind in ROW_LISTS),
        ]

    def overview(self, request: Request) -> Response:
        """Is anything wrong?"""
        saved = saved_filters(request, self._sources.mq.name)
        return self._render.page(request, "overview.html", saved=saved, **self._overview())

    def overview_live(self, request: Request) -> Response:
        """Return the part of the overview that changes."""
        return self._render.page(request, "overview_live.html", **self._overview())

    def _overview(self) -> dict[str, Any]:
        sources, now = self._sources, datetime.now(UTC)
        is_one = len(sources.databases) == 1
        sources.begin_all()
        found: list[signs.Sign] = []
        tracks: list[MinuteTrack] = []
        runs = {}
        for name, kept in sources.kept.items():
            figures = kept.figures.look()
            age = figures.age if figures.value is not None else None
            shown = "" if is_one else name
            found += signs.of_database(shown, figures.value, age, figures.fault, LISTED)
            counts, day = kept.throughput.look(), day_of(sources, name)
            for what in Happening:
                values = (counts.value or {}).get(what, [])
                title = f"{shown}: {what.value}" if shown else what.value
                by_hour = day.get(what, [])
                tracks.append(MinuteTrack(title, values, counts.age, counts.fault, by_hour))
            runs[shown] = kept.run.look()
        ends = {name: each.value.finished.timestamp() for name, each in runs.items() if each.value}
        place = max(runs, key=lambda name: ends.get(name, 0.0))
        newest = runs[place]
        cluster = sources.cluster.look()
        groups = cluster.value.groups if cluster.value is not None else None
        failures = cluster.value.failures if cluster.value is not None else {}
        found += signs.of_cluster(groups, failures, cluster.age, cluster.fault, LISTED)
        found += machine_signs(sources, LISTED)
        age = newest.age if newest.value is not None else None
        found.append(signs.of_run(newest.value, now, age, newest.fault, LISTED, place))
        return {
            "signs": found,
            "worst": signs.worst(found),
            "summary": signs.summary(found),
            "tracks": tracks,
            "latency": latency_panel(sources),
            "groups": sorted(groups or (), key=lambda each: (-each.lag, each.group))[:8],
            "has_groups": groups is not None,
            "read_at": now,
        }

    def find(self, request: Request) -> Response:
        """Find a message, a topic or a group; one message that is found is shown at once."""
        text = request.query_params.get("q", "")
        if len(text) > TEXT_LENGTH_MAX or "\0" in text:
            raise HTTPException(400, f"a search has at most {TEXT_LENGTH_MAX} characters")
        if not text.strip():
            return self._render.page(request, "find.html", found=None)
        found = search(self._sources, text)
        if found.only_one:
            root = request.scope.get("root_path", "")
            only = quote(found.messages[0].message_id, safe="")
            return RedirectResponse(f"{root}/message?id={only}", 303)
        return self._render.page(request, "find.html", found=found, q=text)

    def message(self, request: Request) -> Response:
        """Show one message and its whole life."""
        message_id = request.query_params.get("id", "")
        if not message_id or len(message_id) > TEXT_LENGTH_MAX or "\0" in message_id:
            raise HTTPException(400, f"id names a message: 1 to {TEXT_LENGTH_MAX} characters")
        story = message_story(self._sources, message_id)
        status = 200 if story.is_known or story.away else 404
        trace = trace_link(story.trace, self._render.trace_url)
        return self._render.page(request, "message.html", status, story=story, trace=trace)

    def _list_endpoint(self, kind: RowList) -> Endpoint:
        def endpoint(request: Request) -> Response:
            return self.rows(request, kind)

        return endpoint

    def rows(self, request: Request, kind: RowList) -> Response:
        """Show a list, or return it as CSV or JSON."""
        sources, query = self._sources, request.query_params
        try:
            wanted = wanted_of(kind, query.multi_items(), list(sources.databases))
            form = format_of(query)
        except FilterFault as error:
            if query.get("format") in ("csv", "json"):
                return JSONResponse({"error": str(error)}, 400)
            return self._list_page(request, kind, None, str(error), (), 400)
        if form == "html":
            answer = ask(lambda: _page_or_fault(kind, sources, wanted))
            page = answer.value
            if isinstance(page, str):
                return self._list_page(request, kind, wanted, page, (), 400)
            away = (answer.fault,) if page is None else page.away
            return self._list_page(request, kind, wanted, "", away, 200, page)
        wanted = wanted._replace(limit=kind.export_rows)
        first = ask(lambda: _page_or_fault(kind, sources, wanted), EXPORT_SECONDS)
        page = first.value
        if isinstance(page, str):
            return JSONResponse({"error": page}, 400)
        if page is None or (page.away and not page.rows):  # no rows is not "nothing matches"
            return JSONResponse({"error": "; ".join(page.away if page else (first.fault,))}, 503)
        rows = all_rows(kind, sources, wanted, page)
        if form == "csv":
            head = {"Content-Disposition": f'attachment; filename="{kind.name}.csv"'}
            lines = csv_lines(kind, rows)
            return ExportResponse(streamed(lines), 200, head, "text/csv; charset=utf-8")
        return ExportResponse(streamed(json_lines(rows)), 200, None, "application/json")

    def _list_page(
        self,
        request: Request,
        kind: RowList,
        wanted: WantedPage | None,
        fault: str,
        away: tuple[str, ...],
        status: int,
        page: Any = None,
    ) -> Response:
        return self._render.page(
            request,
            template_of(kind.name),
            status,
            deeds=deeds_of(kind.name),
            kind=kind,
            wanted=wanted,
            query=dict(request.query_params),
            fault=fault,
            away=away,
            found=page,
            databases=list(self._sources.databases),
            saved=saved_filters(request, self._sources.mq.name, kind.name),
        )

    def report(self, request: Request) -> Response:
        """Return the report of a run in a file, to download: it has styles of its own."""
        folder, run_id = self._sources.runs, request.query_params.get("run", "")
        answer = ask(lambda: folder and report_of(folder, run_id))
        if answer.fault:
            raise HTTPException(503, answer.fault)
        if not answer.value:
            raise HTTPException(404, "there is no report of such a run")
        policy = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"
        name = f"{answer.value.parent.name}.html"
        head = {"Content-Security-Policy": policy}
        fields = self._sources.mq._declared.sensitive_of(DEAD_LETTER_PREFIX)  # of all topics
        if fields:
            text = fields.masked_sentence(answer.value.read_text(errors="replace"))
            head["Content-Disposition"] = f'attachment; filename="{name}"'
            return Response(text, headers=head, media_type="text/html")
        return FileResponse(answer.value, filename=name, media_type="text/html", headers=head)

    def log_in_page(self, request: Request) -> Response:
        """Ask for a name and a password."""
        wanted = request.query_params.get("to", "")
        ways = request.state.guard.ways
        return self._render.page(
            request, "log_in.html", to=inside(wanted), fault="", name="", **ways
        )

    async def log_in(self, request: Request) -> Response:
        """Begin a session."""
        form = await form_of(request)
        guard: PageGuard = request.state.guard
        name, password, to = ((form.get(each) or [""])[0] for each in ("name", "password", "to"))
        user, fault = await in_thread(guard.log_in, request, name, password)
        if user is None:
            status = 429 if fault.startswith("too many") else 403
            return self._render.page(
                *(request, "log_in.html", status),
                to=inside(to),
                fault=fault,
                name=name,
                **guard.ways,
            )
        response = RedirectResponse(request.scope.get("root_path", "") + (inside(to) or "/"), 303)
        guard.begin(request, user, response)
        return response

    async def log_out(self, request: Request) -> Response:
        """End the session."""
        await form_of(request)
        response = RedirectResponse(f"{request.scope.get('root_path', '')}/log-in", 303)
        request.state.guard.begin(request, None, response)
        return response

    async def healthz(self, _request: Request) -> Response:
        """Whether this process lives."""
        health = liveness(self._sources.mq)
        return JSONResponse(health.body, health.status)

    def readyz(self, request: Request) -> Response:
        """Whether its databases answer. Only who may see the pages learns why one does not."""
        health = readiness(self._sources.mq)
        if request.state.person is None:
            return JSONResponse({"status": health.body["status"]}, health.status)
        return JSONResponse(health.body, health.status)

    def metrics(self, _request: Request) -> Response:
        """Return the figures that --metrics-port serves of databases, for Prometheus."""
        text, kind = self._metrics()
        return Response(text, 200, None, kind)

    async def static(self, request: Request) -> Response:
        """Return the style sheet, the script or the icon."""
        found = self._render.files.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "there is no such file")
        is_current = request.query_params.get("v") == self._render.version
        kept = "public, max-age=31536000, immutable" if is_current else "no-cache"
        return Response(found[0], 200, {"Cache-Control": kept}, found[1])

    async def fault(self, request: Request, error: Exception) -> Response:
        """Return the page of an error."""
        status = error.status_code if isinstance(error, HTTPException) else 500
        said = error.detail if isinstance(error, HTTPException) else "this is a bug: see the log"
        texts = {404: "There is no such page.", 405: "This address takes no such request."}
        text = texts.get(status, said) if said in ("Not Found", "Method Not Allowed") else said
        page = self._render.page(request, "fault.html", status, code=status, text=text)
        # A bug is answered outside of the guard.
        page.headers.update(HEADERS | {"Cache-Control": "no-store"})
        return page


def _page_or_fault(kind: RowList, sources: ConsoleSources, wanted: WantedPage) -> Any:
    """Return a page, or the line about a parameter that the list itself refuses."""
    try:
        return kind.page(sources, wanted)
    except FilterFault as error:
        return str(error)


ByName: Mapping[str, RowList] = BY_NAME
