"""`/kv_recover` as a route of an application that the engine serves anyway (FastAPI, or anything else that is ASGI).

The handler is a plain function: FastAPI calls it in a thread of its pool, and the interpreter's lock is free while the
recorder works, so that the event loop goes on.
"""

from typing import Annotated, Optional

from fastapi import FastAPI, Query, Response

import kvplane

EventId = Annotated[Optional[int], Query(ge=0, lt=2**64)]


def add_recovery(app: FastAPI, recorder: kvplane.Recorder) -> None:
    """Adds the route to an application."""

    @app.get("/kv_recover")
    def kv_recover(start: EventId = None, end: EventId = None) -> Response:
        try:
            answer, status = recorder.get_events_json(start, end), 200
        except kvplane.ClosedError:
            answer, status = '{"Error":"the recorder was shut down"}', 503
        return Response(answer, status, media_type="application/json")
