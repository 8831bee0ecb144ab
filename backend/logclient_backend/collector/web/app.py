"""The application: routes, one form of error, the guard around it. Served by uvicorn in the collector's process.

Handlers are plain functions, which run in worker threads: the store is read while the event loop goes on.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse
from starlette.exceptions import HTTPException

from logclient.errors import BadArgument, Corrupt

from ..store.interface import StoreError
from ..tokens import Grant
from . import (
    bands,
    columns,
    console,
    control,
    curves,
    docs_page,
    edits,
    environment,
    extremes,
    groups,
    health,
    listing,
    many_runs,
    marks,
    media,
    pairs,
    records,
    reports,
    session,
    stream,
    values,
)
from .access import SCHEME, Stands, anybody
from .context import Backing
from .live import Live
from .live_runs import RunChanges
from .origin_check import OriginCheck
from .response_models import Error, Info
from .responses import Refused, as_json, refusal
from .session_cookie import cookie_of
from .static_files import StaticFiles, make_router
from .strict_query import only_known

API_VERSION = 1
_LOG = logging.getLogger(__name__)
_STATUSES = {
    400: "The question cannot be answered as it was put.",
    401: "No token, or none of this collector's.",
    403: "The token may not do this, a page of another origin asked, or a cookie came alone.",
    404: "There is no such run, or no such key.",
    409: "Not now: the run is over, or nothing is known of it yet.",
    421: "Asked by a host name that is none of this collector's.",
    503: "The store cannot answer now.",
}
_ABOUT = (
    "What is stored of runs. Answers are strict JSON: NaN and infinities are the strings `nan`, `inf`, `-inf`; ints "
    "have all their digits, also beyond 2**53. Times are ns since 1970 UTC. Runs are named by the parameter `run`, "
    "percent-encoded once. Errors are `{error, message}`. Send `Authorization: Bearer TOKEN`; "
    "a browser's page gets a cookie for it at `/api/v1/session`, and sends `X-Logclient: 1` with all that changes "
    "something."
)

about = APIRouter(dependencies=[Depends(anybody), Depends(only_known)])


@about.get("/info", response_model=Info)
def info(request: Request, stands_on: Stands, grant: Grant = Depends(anybody)) -> Response:  # noqa: B008
    """This collector: its id, version, what your token may do, sizes, where its data lies."""
    from importlib.metadata import version

    facts = stands_on.facts()
    return as_json(
        request,
        {
            **facts,
            "not_ready": facts["not_ready"] if "not_ready" in facts else stands_on.not_ready(),
            "collector": stands_on.store.id,
            "version": version("logclient"),
            "api": API_VERSION,
            "role": grant.role,
            "now_ns": time.time_ns(),
            "statistics": dict(stands_on.store.statistics()),
        },
    )


class _Api(FastAPI):
    """With the guard around everything, and a description that is correct."""

    def build_middleware_stack(self) -> Any:
        stands_on: Backing = self.state.backing
        return OriginCheck(
            super().build_middleware_stack(),
            stands_on.names,
            stands_on.callers,
            stands_on.site,
            self.state.cookie,
        )

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            stands_on: Backing = self.state.backing
            made = get_openapi(
                title=self.title,
                version=self.version,
                description=_ABOUT,
                routes=self.routes,
                servers=[{"url": stands_on.site.root_path}] if stands_on.site.root_path else None,
            )
            made["components"]["securitySchemes"][SCHEME]["name"] = self.state.cookie.name
            for verbs in made["paths"].values():
                for operation in verbs.values():
                    responses = operation["responses"]
                    responses.pop("422", None)  # 400 is documented for it
                    for status in _STATUSES:  # also where the answer itself is no JSON
                        responses[str(status)]["content"] = {
                            "application/json": {"schema": {"$ref": "#/components/schemas/Error"}}
                        }
            for name in ("HTTPValidationError", "ValidationError"):
                made["components"]["schemas"].pop(name, None)
            self.openapi_schema = made
        return self.openapi_schema


def make_app(stands_on: Backing) -> FastAPI:
    """The whole HTTP side of a collector."""
    errors: dict[int | str, dict[str, Any]] = {
        status: {"model": Error, "description": text} for status, text in _STATUSES.items()
    }
    app = _Api(
        title="logclient collector",
        version=str(API_VERSION),
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        responses=errors,
        redirect_slashes=False,
    )
    app.state.backing = stands_on
    app.state.cookie = cookie_of(stands_on.site, stands_on.store.id)
    app.state.live = Live(stands_on.store, RunChanges(stands_on))
    modules = (
        session,
        listing,
        columns,
        groups,
        edits,
        environment,
        control,
        reports,
        values,
        extremes,
        curves,
        stream,
        many_runs,
        bands,
        pairs,
        marks,
        records,
        console,
        media,
    )
    for router in (about, *(module.router for module in modules)):
        app.include_router(router, prefix=f"/api/v{API_VERSION}")
    app.include_router(health.router)
    app.include_router(make_router(StaticFiles()))
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(StoreError, _store)
    app.add_exception_handler(Corrupt, _store)
    app.add_exception_handler(BadArgument, _argument)
    app.add_exception_handler(Exception, _failed)

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(
            docs_page.page(app.openapi()), headers={"content-security-policy": docs_page.POLICY}
        )

    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return refusal(error)


async def _invalid(request: Request, error: Exception) -> Response:
    """The first parameter that is wrong; what was sent is not repeated."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:]) or "the request"
    return refusal(Refused(400, "bad_request", f"{where}: {first['msg']}"))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    root = request.app.state.backing.site.root_path
    words = {404: ("no_path", f"there is nothing at this path: see {root}/docs")}
    words[405] = ("no_method", f"this path does not take that method: see {root}/docs")
    made = refusal(Refused(error.status_code, *words.get(error.status_code, ("refused", str(error.detail)))))
    made.headers.update(error.headers or {})
    return made


async def _store(request: Request, error: Exception) -> Response:
    return refusal(Refused(503, "store", str(error), retry_after_s=5))


async def _argument(request: Request, error: Exception) -> Response:
    """A cursor of another question, and the like."""
    return refusal(Refused(400, "bad_request", str(error)))


async def _failed(request: Request, error: Exception) -> Response:
    """Our mistake: described in the log (by the server), not to the caller."""
    return refusal(Refused(500, "internal", "the collector failed to answer: its log has the reason"))
