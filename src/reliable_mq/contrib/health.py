"""Whether a process is alive, and whether it is ready: for the probes of a platform.

The functions are in `app.thread_health`: the console answers probes, too.
"""

from reliable_mq.app.thread_health import Health, liveness, readiness

__all__ = ["Health", "liveness", "readiness"]
