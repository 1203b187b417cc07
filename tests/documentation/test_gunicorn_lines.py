"""The configuration for Gunicorn on the page about observation: every line is JSON."""

import json
import re
import socket
import sys
from pathlib import Path

import pytest
from bench.child_process import LoggedProcess
from tests.waiting import SECONDS_MAX

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "observation.md"
pytestmark = pytest.mark.processes

APPLICATION = """
import logging

def application(environ, start_response):
    logging.getLogger("shop").info("asked")
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ok"]
"""


def test_lines_of_gunicorn_and_of_the_application_are_json(tmp_path: Path) -> None:
    (shown,) = re.findall(
        r'^  ```python title="gunicorn.conf.py"\n(.*?)^  ```',
        PAGE.read_text(),
        re.MULTILINE | re.DOTALL,
    )
    (tmp_path / "gunicorn.conf.py").write_text(re.sub("^  ", "", shown, flags=re.MULTILINE))
    (tmp_path / "wsgi.py").write_text(APPLICATION)
    path, log = tmp_path / "shop.socket", tmp_path / "gunicorn.log"
    gunicorn = LoggedProcess(
        [
            *(sys.executable, "-m", "gunicorn", "--bind", f"unix:{path}"),
            *("--config", str(tmp_path / "gunicorn.conf.py"), "--chdir", str(tmp_path)),
            *("--worker-tmp-dir", str(tmp_path), "wsgi:application"),
        ],
        log,
    )
    try:
        gunicorn.wait_for("Booting worker", SECONDS_MAX)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert b" 200 OK" in client.recv(4096)
        gunicorn.stop()
    finally:
        gunicorn.kill()

    lines = [json.loads(each) for each in log.read_text().splitlines()]
    assert {each["logger"] for each in lines} == {"gunicorn.error", "gunicorn.access", "shop"}
