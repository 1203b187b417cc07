"""Wrong uses of a gRPC endpoint have the same answers at Apache's proxy 5.4.0 and at ours.

Where ours differ, `DIFFERS` says how and why. The reference has the same rows.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.bad_calls import ASKS, caller_at, prepare, wait_for_topics
from tests.interop.bad_headers import Outcome
from tests.interop.sdk_servers import BROKER_SETTINGS, Endpoint, running
from tests.with_java import INTEROP

from reliable_mq.gateway.codes import Code

STRICT = {**BROKER_SETTINGS, "autoCreateSubscriptionGroup": "false"}
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "grpc_endpoint.md"
ONE_KIND = "Apache's looks at the first message only. The others would not be what they say."
MALFORMED = "RFC 9113: a malformed request ends its stream, and other calls go on."
PARSING = "gRPC's table of status codes has this one for it."
DIFFERS: dict[str, tuple[Outcome, Outcome, str]] = {
    "settings without a client id": (
        Code.CLIENT_ID_REQUIRED,
        "INVALID_ARGUMENT",
        "The stream can serve no client, so it ends.",
    ),
    "settings without a language": ("INTERNAL", Code.OK, "The language is not needed here."),
    "farewell without settings and a language": (
        Code.INTERNAL_SERVER_ERROR,
        Code.UNRECOGNIZED_CLIENT_TYPE,
        "The code is that of a farewell with a language.",
    ),
    "acknowledge nothing": (
        Code.INTERNAL_SERVER_ERROR,
        Code.BAD_REQUEST,
        "The fault is in the call, not in the server.",
    ),
    "send to an unknown topic": (
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        Code.TOPIC_NOT_FOUND,
        "The code says what is wrong.",
    ),
    "send two kinds in one call": (
        Code.OK,
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ONE_KIND,
    ),
    "send two encodings in one call": (
        Code.OK,
        Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ONE_KIND,
    ),
    "end a transaction in no way": (
        Code.INTERNAL_SERVER_ERROR,
        Code.BAD_REQUEST,
        "Apache's broker does not answer, so its proxy waits.",
    ),
    "lite subscription": (
        "UNIMPLEMENTED",
        Code.NOT_IMPLEMENTED,
        "A code and a text, as for other calls of the service.",
    ),
    "a request that is no protobuf": ("UNKNOWN", "INTERNAL", PARSING),
    "a command that is no protobuf": ("UNKNOWN", "INTERNAL", PARSING),
    "HTTP/1": (
        "frames of HTTP/2, then closed",
        "status 505",
        "A client of HTTP/1 can show this answer.",
    ),
    "headers: no path": ("status 404", "reset with PROTOCOL_ERROR", MALFORMED),
    "headers: no method": ("status 405", "reset with PROTOCOL_ERROR", MALFORMED),
    "headers: capitals in a name": (
        "closed with PROTOCOL_ERROR",
        "reset with PROTOCOL_ERROR",
        MALFORMED,
    ),
}
"""The use -> the answer of Apache's proxy, the answer of ours, and why."""


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Endpoint]]:
    with running(tmp_path_factory.mktemp("bad"), settings=STRICT) as found:
        prepare(found["apache"])  # also for the proxy, which is before the same broker
        prepare(found["ours"])
        for endpoint in found.values():
            wait_for_topics(endpoint)
        yield found


@pytest.mark.parametrize("name", [pytest.param(name, marks=INTEROP) for name in ASKS])
def test_a_wrong_use_has_the_answer_of_apaches_proxy(
    endpoints: dict[str, Endpoint], name: str
) -> None:
    outcomes = {}
    for which, endpoint in endpoints.items():
        with caller_at(endpoint) as caller:
            outcomes[which] = ASKS[name](caller)
    theirs = outcomes.pop("apache")
    known = DIFFERS.get(name)
    if known is None:
        assert outcomes == dict.fromkeys(outcomes, theirs)
    else:
        assert (theirs, outcomes) == (known[0], dict.fromkeys(outcomes, known[1])), known[2]
        assert theirs != known[1], "this is no difference any more"


def shown(outcome: Outcome) -> str:
    if isinstance(outcome, int):
        return str(int(outcome))
    return f"`{outcome}`" if outcome.isupper() else outcome


def test_the_reference_has_these_differences() -> None:
    wanted = [
        f"| {name} | {shown(theirs)} | {shown(ours)} | {why} |"
        for name, (theirs, ours, why) in DIFFERS.items()
    ]
    section = PAGE.read_text().partition("## Other answers than Apache's proxy")[2]
    section = section.partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert rows == wanted, "write these rows:\n" + "\n".join(wanted)
