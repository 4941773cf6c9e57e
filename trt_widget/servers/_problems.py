"""Errors as answers: ``application/problem+json`` (RFC 9457) with the cause and what to do."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from starlette.responses import JSONResponse

from trt_widget.errors import BuildError
from trt_widget.rows import clipped
from trt_widget.servers.builds import PathRefused, QueueFull, RequestError, UnknownBuild

__all__ = ["MEDIA_TYPE", "problem", "problem_of"]

MEDIA_TYPE = "application/problem+json"
#: Seconds after which one that was turned away for now may come again.
RETRY_AFTER_S = 5
#: Characters of a text of an answer: what was asked for may be in it.
MAX_TEXT = 2000
#: Pieces of evidence in it.
MAX_EVIDENCE = 20

_STATUS: tuple[tuple[type[BuildError], int], ...] = (
    (UnknownBuild, 404),
    (PathRefused, 403),
    (QueueFull, 429),
    (RequestError, 422),
    (BuildError, 422),
)


def problem(
    status: int, cause: str, remedy: str = "", *, headers: dict[str, str] | None = None, **more: Any
) -> JSONResponse:
    """Make an answer that says what is wrong and what to do."""
    cause, remedy = clipped(cause, MAX_TEXT), clipped(remedy, MAX_TEXT)
    content = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": cause,
        "cause": cause,
        "remedy": remedy,
        **more,
    }
    return JSONResponse(content, status, headers, MEDIA_TYPE)


def problem_of(error: BuildError) -> JSONResponse:
    """Make an answer of an error of this package."""
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status == HTTPStatus.TOO_MANY_REQUESTS else {}
    more = {
        "details": clipped(error.details(), MAX_TEXT),
        "evidence": [clipped(text, MAX_TEXT) for text in error.evidence[:MAX_EVIDENCE]],
    }
    return problem(
        status,
        error.cause,
        error.remedy,
        headers=headers,
        **{name: value for name, value in more.items() if value},
    )
