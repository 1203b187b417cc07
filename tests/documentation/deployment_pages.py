"""The pages with the files of `deploy/`: each file is printed from the checkout, and can be loaded.

Returns words for pages, and the files that the site must have. Reads only names, and the titles of
the panels.
"""

import json
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DASHBOARD = "deploy/grafana/reliable_mq.json"
CONSOLE_DASHBOARD = "deploy/grafana/reliable_mq_console.json"
PINS = ".github/constraints.txt"
NOT_PRINTED = (DASHBOARD, CONSOLE_DASHBOARD, PINS)
LANGUAGES = {".yaml": "yaml", ".yml": "yaml", ".service": "ini", ".timer": "ini"}
OPERATOR = "../../how-to/kubernetes.md#prometheus-operator-kube-prometheus-stack"
HOST = "../../how-to/deployment.md#containers-the-brokers-address"

PAGES = {
    "docker": "Dockerfile",
    "compose": "Compose file",
    "kubernetes": "Kubernetes manifests",
    "systemd": "systemd units",
    "prometheus": "Alert rules for Prometheus",
    "grafana": "Grafana dashboards",
}
"""The folder of deploy/, or for a file there its own name -> the title of its page."""

ADVICE = {
    "docker": """
It is for a checkout of the repository. Without one, remove the three lines that copy the checkout,
and write `"reliable-mq[${EXTRAS}]"` instead of `".[${EXTRAS}]"`.
[Container](../../how-to/deployment.md#container) says how to build it.
""",
    "compose": f"""
It runs the broker, PostgreSQL, Valkey, and the shop of `examples/` with two workers and a resend
scheduler. Write your application instead of `examples.shop:mq`, and your image instead of `build`.
[The broker's address]({HOST}) is that of its container.
""",
    "kubernetes": """
Put all of them into one folder. Change names, image and secret. Then apply the folder:
`kubectl apply --kustomize FOLDER`.
[Kubernetes](../../how-to/deployment.md#kubernetes) says what to keep in mind.
""",
    "systemd": """
Put them into `/etc/systemd/system`.
[systemd](../../how-to/deployment.md#systemd) says how to switch them on.
""",
    "prometheus": f"""
Name the file of rules under `rule_files` of Prometheus. The Prometheus operator takes
objects instead: [how to make them]({OPERATOR}).
[Metrics](../metrics.md#alert-rules) has a table of what each rule means.
""",
    "grafana": """
Import them in Grafana: *Dashboards*, *New*, *Import*. It asks for a data source of Prometheus. The
files are long, so this page lists their panels only. The second one is about what the console
serves at its address `/metrics`.
""",
}

INDEX = """# Files for deployment

Copy what you need, and change names, image and secrets. Each page prints the files that the tests
check, and each file can be loaded. [Deploy](../../how-to/deployment.md) says how to use them.

| page | files |
|---|---|
"""
PINNED = """
pins the versions of all packages that the tests of this release ran with:
`pip install -c constraints.txt 'reliable-mq[all]'`.
"""


def files_of(name: str) -> list[str]:
    """Return the files of a page, by their place in the checkout."""
    alone = {"docker": "deploy/Dockerfile", "compose": "deploy/compose.yaml"}
    if name in alone:
        return [alone[name]]
    found = sorted(path for path in (DEPLOY / name).iterdir() if path.name != "secret.env")
    return [path.relative_to(ROOT).as_posix() for path in found]


def downloads() -> dict[str, Path]:
    """Return each file that the site has by its place there."""
    names = [each for name in PAGES for each in files_of(name)] + [PINS]
    return {place_of(name): ROOT / name for name in names}


def place_of(name: str) -> str:
    """Return where the site has a file of the checkout."""
    return f"reference/deployment/files/{name.removeprefix('deploy/').removeprefix('.github/')}"


def _link(name: str) -> str:
    place = place_of(name).removeprefix("reference/deployment/")
    return f"[{Path(name).name}]({place}){{ download }}"


def index_page() -> str:
    """Return the page that names all pages and files."""
    rows = [
        f"| [{title}]({name}.md) | {', '.join(map(_link, files_of(name)))} |\n"
        for name, title in PAGES.items()
    ]
    return f"{INDEX}{''.join(rows)}\n{_link(PINS)}{PINNED}"


def page(name: str) -> str:
    """Return the page of some files."""
    return f"# {PAGES[name]}\n{ADVICE[name]}{''.join(map(_shown, files_of(name)))}"


def _shown(name: str) -> str:
    head = f"\n## {Path(name).name}\n\n{_link(name)}: load this file.\n\n"
    if name in NOT_PRINTED:
        return head + "".join(f"- {title}\n" for title in _panels(ROOT / name))
    language = LANGUAGES.get(Path(name).suffix, "docker" if name.endswith("Dockerfile") else "text")
    return f'{head}```{language}\n--8<-- "{name}"\n```\n'


def _panels(dashboard: Path) -> Iterator[str]:
    for panel in json.loads(dashboard.read_text())["panels"]:
        if panel["type"] != "row":
            yield panel["title"]
