"""Requests to a server on this machine that may not be there yet."""

import http.client
import json
from typing import Any

from tests.waiting import SECONDS_MAX


def asked(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    """Return status and JSON of an answer; the status is 0 when there was no answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=SECONDS_MAX)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(text) if is_json else text.decode()
    except (OSError, http.client.HTTPException):
        return 0, None
    finally:
        connection.close()
