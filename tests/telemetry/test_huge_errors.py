"""A traceback in the log has the begin of an error's text: ten megabytes would fill a disk."""

import logging

import pytest

from reliable_mq.telemetry.log_event import error
from reliable_mq.telemetry.written_errors import TEXT_MAX

FAILED = error("failed", "it failed")
log = logging.getLogger("tests.huge")


def _written(caplog: pytest.LogCaptureFixture, failed: Exception) -> str:
    FAILED.log(log, traceback_of=failed)
    return logging.Formatter().format(caplog.records[-1])


def _raised(text: str, cause: Exception | None = None) -> Exception:
    with pytest.raises(ValueError, match=text[:9]) as caught:
        raise ValueError(text) from cause
    return caught.value


def test_a_huge_text_is_cut_in_the_traceback(caplog: pytest.LogCaptureFixture) -> None:
    written = _written(caplog, _raised("x" * 10_000_000))

    assert len(written) < 2 * TEXT_MAX
    assert "ValueError: xxx" in written
    assert "(10000000 characters)" in written
    assert "in _raised" in written


def test_a_huge_text_of_a_cause_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    written = _written(caplog, _raised("short", _raised("x" * 1_000_000)))

    assert len(written) < 2 * TEXT_MAX
    assert "direct cause" in written
    assert "ValueError: short" in written


def test_a_usual_error_is_the_same_object(caplog: pytest.LogCaptureFixture) -> None:
    raised = _raised("short", _raised("cause"))

    _written(caplog, raised)

    assert caplog.records[-1].exc_info is not None
    assert caplog.records[-1].exc_info[1] is raised
