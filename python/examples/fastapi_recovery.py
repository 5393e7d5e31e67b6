"""`/kv_recover` as a route of an application that the engine serves anyway (FastAPI, or anything else that is ASGI).

The handler is a plain function: FastAPI calls it in a thread of its pool, and the interpreter's lock is free while the
recorder works, so that the event loop goes on.
"""

import json
from typing import Optional

from fastapi import FastAPI, Response

import kvplane


def add_recovery(app: FastAPI, recorder: kvplane.Recorder) -> None:
    """Adds the route to an application. It answers as ``serve_recovery`` does: also a refusal has the shape that is read there."""

    # Everything is text here: what is wrong is refused below, in our own words.
    @app.get("/kv_recover")
    def kv_recover(
        start: Optional[str] = None, end: Optional[str] = None, engine: Optional[str] = None, rank: Optional[str] = None
    ) -> Response:
        try:
            first, last, of_rank = (None if number is None else int(number) for number in (start, end, rank))
            if engine not in (None, recorder.engine) or of_rank not in (None, recorder.rank):
                return refusal(404, f"only stream {recorder.engine}/{recorder.rank} is here")
            return Response(recorder.get_events_json(first, last), media_type="application/json")
        except ValueError as error:
            return refusal(400, str(error))
        except kvplane.ClosedError as error:
            return refusal(503, str(error))


def refusal(status: int, message: str) -> Response:
    return Response(json.dumps({"Error": message}), status, media_type="application/json")
