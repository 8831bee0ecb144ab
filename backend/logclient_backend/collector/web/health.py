"""Is it alive, is it ready, how is it: for systemd, load balancers and Prometheus."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Response
from fastapi.responses import PlainTextResponse

from .access import Stands, reader
from .responses import Refused

router = APIRouter()


@router.get("/healthz", response_class=PlainTextResponse)
async def alive() -> PlainTextResponse:
    """It answers. Needs no token."""
    return PlainTextResponse("ok\n")


@router.get("/readyz", response_class=PlainTextResponse)
def ready(stands_on: Stands) -> PlainTextResponse:
    """It takes data and answers questions; else 503 with the reason. Needs no token."""
    why = stands_on.not_ready()
    if why:
        raise Refused(503, "not_ready", why, retry_after_s=5)
    return PlainTextResponse("ready\n")


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[Depends(reader)])
def metrics(stands_on: Stands) -> Response:
    """Counters and gauges in Prometheus's text format; docs/server.md describes each."""
    return Response(stands_on.metrics(), 200, None, "text/plain; version=0.0.4; charset=utf-8")
