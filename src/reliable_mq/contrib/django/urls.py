"""Health for the probes of a platform: 200, or 503 with a reason; see `contrib.health`.

    urlpatterns = [path("health/", include("reliable_mq.contrib.django.urls"))]

`GET /health/live` and `GET /health/ready` begin no transaction, also with ATOMIC_REQUESTS: a
database that hangs must not make a process look dead.
"""

from collections.abc import Callable

from django.db import connections
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, JsonResponse
from django.urls import path

from reliable_mq.app.application import ReliableMQ
from reliable_mq.contrib.django.application import shared
from reliable_mq.contrib.health import Health, liveness, readiness


def _view(check: Callable[[ReliableMQ], Health]) -> Callable[[HttpRequest], JsonResponse]:
    def answer(_request: HttpRequest) -> JsonResponse:
        health = check(shared())
        return JsonResponse(health.body, status=health.status)

    for alias in connections:
        answer = non_atomic_requests(using=alias)(answer)
    return answer


urlpatterns = [path("live", _view(liveness)), path("ready", _view(readiness))]
