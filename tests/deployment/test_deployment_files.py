"""Each file of `deploy/` and `.github/` passes its own linter, or says which linter is missing.

`make deployment` runs these tests only.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from reliable_mq.settings import Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [
    path
    for path in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
    if path.name != "config.yml"
]
MANIFESTS = [
    path
    for path in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
    if path.name != "kustomization.yaml"
]
YAML = [
    *WORKFLOWS,
    *(ROOT / ".github").glob("*.yml"),
    *(ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"),
    *DEPLOY.rglob("*.yaml"),
    ROOT / ".pre-commit-config.yaml",
]
UNITS = sorted((DEPLOY / "systemd").iterdir())
# Lines may be as long as a command; a comma in braces needs no spaces around.
YAML_RULES = (
    "{extends: default, rules: {line-length: {max: 130}, document-start: disable, "
    "truthy: {check-keys: false}, comments: {min-spaces-from-content: 2}}}"
)
KUBERNETES_VERSION = "1.33"
LOADER: type[yaml.SafeLoader | yaml.CSafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Of C, where there is one: each process of the tests reads these files to find its tests."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lint(program: str, *words: str) -> None:
    """Run a linter of our environment; fail with what it says, skip if it is not installed.

    It takes all files of a kind at once: to start it takes longer than to read them.
    """
    beside = Path(sys.executable).parent / program
    found = str(beside) if beside.exists() else shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not installed")
    said = subprocess.run([found, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


def documents(path: Path) -> list[dict[str, object]]:
    return [each for each in yaml.load_all(path.read_text(), LOADER) if each]


def test_yaml_files_are_tidy() -> None:
    lint("yamllint", "--strict", "--config-data", YAML_RULES, *map(str, YAML))


def test_a_workflow_is_one_that_github_accepts() -> None:
    lint("check-jsonschema", "--builtin-schema", "vendor.github-workflows", *map(str, WORKFLOWS))


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_a_workflow_gives_no_job_more_rights_than_it_needs(path: Path) -> None:
    lint("zizmor", "--offline", "--quiet", str(path))


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_a_workflow_names_each_action_by_the_hash_of_its_commit(path: Path) -> None:
    """A tag may be moved to another commit; Dependabot raises hash and comment together."""
    used = re.findall(r"(?m)^\s*(?:- )?uses: (.+)$", path.read_text())

    assert used
    assert [each for each in used if not re.fullmatch(r"\S+@[0-9a-f]{40}  # v[\d.]+", each)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=name_of)
def test_the_expressions_of_a_workflow_can_be_evaluated(path: Path) -> None:
    lint("actionlint", "-shellcheck=", "-pyflakes=", str(path))


def test_an_issue_form_is_one_that_github_accepts() -> None:
    lint("check-jsonschema", "--builtin-schema", "vendor.github-issue-forms", *map(str, FORMS))


def test_the_other_files_for_github_are_accepted() -> None:
    folder = ROOT / ".github"
    config = str(folder / "ISSUE_TEMPLATE" / "config.yml")
    lint("check-jsonschema", "--builtin-schema", "vendor.github-issue-config", config)
    updates = str(folder / "dependabot.yml")
    lint("check-jsonschema", "--builtin-schema", "vendor.dependabot", updates)


def test_the_compose_file_is_one_that_compose_accepts() -> None:
    lint(
        "check-jsonschema",
        *("--builtin-schema", "vendor.compose-spec"),
        str(DEPLOY / "compose.yaml"),
    )


def test_the_dockerfile_has_no_finding() -> None:
    lint("hadolint", "--ignore", "DL3042", str(DEPLOY / "Dockerfile"))


def test_a_manifest_is_one_that_kubernetes_accepts() -> None:
    version = ("--kubernetes-version", KUBERNETES_VERSION)
    lint("kubernetes-validate", "--strict", *version, *map(str, MANIFESTS))


def test_the_list_of_manifests_is_whole() -> None:
    (listed,) = documents(DEPLOY / "kubernetes" / "kustomization.yaml")

    assert listed["resources"] != []
    assert set(listed["resources"]) == {path.name for path in MANIFESTS}  # type: ignore[call-overload]


def pods() -> list[tuple[str, dict[str, object]]]:
    """Return the pod of each manifest that has one, with the manifest's name."""
    found = []
    for path in MANIFESTS:
        for each in documents(path):
            spec = each.get("spec")
            while isinstance(spec, dict) and "containers" not in spec:
                spec = (spec.get("jobTemplate") or spec.get("template") or {}).get("spec")
            if isinstance(spec, dict):
                found.append((path.name, spec))
    return found


@pytest.mark.parametrize(("name", "pod"), pods(), ids=[name for name, _ in pods()])
def test_no_container_is_root_or_writes_to_its_image(name: str, pod: dict[str, object]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True  # type: ignore[index]
    for container in pod["containers"]:  # type: ignore[attr-defined]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "limits" in container["resources"]
        assert "livenessProbe" in container or name in {"migrate.yaml", "reconcile.yaml"}


@pytest.mark.parametrize(("name", "pod"), pods(), ids=[name for name, _ in pods()])
def test_a_pod_may_write_to_its_volumes_and_has_time_to_end(
    name: str, pod: dict[str, object]
) -> None:
    """A volume belongs to root unless the pod has an `fsGroup`."""
    kept = ("persistentVolumeClaim", "volumeClaimTemplates")
    if any(each in (DEPLOY / "kubernetes" / name).read_text() for each in kept):
        assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsUser"]  # type: ignore[index]
    assert pod["terminationGracePeriodSeconds"] > Settings().shutdown_timeout_seconds  # type: ignore[operator]


def test_no_secret_lies_in_the_repository() -> None:
    """A secret of an example would replace the real one at the next `kubectl apply`."""
    kinds = [each["kind"] for path in MANIFESTS for each in documents(path)]
    (listed,) = documents(DEPLOY / "kubernetes" / "kustomization.yaml")
    example = (DEPLOY / "kubernetes" / "secret.env.example").read_text()
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", "deploy/kubernetes/secret.env"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )

    assert "Secret" not in kinds
    assert listed["secretGenerator"] == [{"name": "reliable-mq", "envs": ["secret.env"]}]
    assert re.findall(r"(?m)^RELIABLE_MQ_(\w+)=", example) == ["DATABASE"]
    assert ignored.returncode in (0, 128)  # 128: this is no checkout


@pytest.mark.parametrize("path", [each for each in UNITS if each.suffix == ".service"], ids=name_of)
def test_a_unit_of_a_daemon_is_started_again_however_often_it_fails(path: Path) -> None:
    text = path.read_text()

    if "Restart=always" in text:
        assert "StartLimitIntervalSec=0" in text.partition("[Service]")[0]
        (seconds,) = re.findall(r"(?m)^TimeoutStopSec=(\d+)$", text)
        assert int(seconds) > Settings().shutdown_timeout_seconds
    else:
        assert "Type=oneshot" in text


@pytest.mark.parametrize("path", UNITS, ids=name_of)
def test_a_unit_is_one_that_systemd_accepts(path: Path, tmp_path: Path) -> None:
    """Programs and users that are not on this machine are replaced."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for each in UNITS:
        text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", each.read_text())
        text = re.sub(r"(?m)^(User|Group)=mq$", "", text)
        (tmp_path / each.name.replace("@.", "@shop.")).write_text(text)

    unit = tmp_path / path.name.replace("@.", "@shop.")
    said = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    about = [line for line in (said.stdout + said.stderr).splitlines() if unit.name in line]
    assert about == []
    assert said.returncode == 0, said.stderr


def test_no_file_of_the_deployment_is_left_out_of_these_tests() -> None:
    known = {*YAML, *UNITS, DEPLOY / "Dockerfile", DEPLOY / "kubernetes" / "secret.env.example"}
    known |= {*DEPLOY.glob("grafana/*"), *DEPLOY.glob("prometheus/*")}  # tests/telemetry

    assert {path for path in DEPLOY.rglob("*") if path.is_file()} - known == set()


def commands() -> list[tuple[str, list[str]]]:
    """Return the words after `reliable-mq` in all files of the deployment."""
    found = []
    for unit in UNITS:
        text = unit.read_text().replace("${RELIABLE_MQ_APP}", "shop:mq")
        lines = re.findall(r"(?m)^ExecStart=\S+/reliable-mq (.*)$", text)
        found += [(unit.name, line.split()) for line in lines]
    for name, pod in pods():
        found += [(name, list(each["args"])) for each in pod["containers"]]  # type: ignore[attr-defined]
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    ours = {
        name: each
        for name, each in compose.items()
        if each["image"] == "reliable-mq" and "entrypoint" not in each
    }
    found += [(f"compose {name}", each["command"]) for name, each in ours.items()]
    return found


@pytest.mark.parametrize(
    ("words"), [words for _, words in commands()], ids=[name for name, _ in commands()]
)
def test_a_command_of_the_deployment_has_only_options_that_exist(words: list[str]) -> None:
    import typer

    from reliable_mq.cli.main import build_app

    command = typer.main.get_command(build_app(words)).commands[words[0]]  # type: ignore[attr-defined]
    context = command.make_context(words[0], list(words[1:]), resilient_parsing=True)

    assert context.args == []
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    used = {word.partition("=")[0] for word in words[1:] if word.startswith("--")}
    assert used <= known


def test_compose_makes_all_tables_that_its_shop_needs() -> None:
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    python, flag, module = services["tables"]["entrypoint"]
    source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()

    assert (python, flag, services["tables"]["command"]) == ("python", "-m", [])
    assert "mq.create_tables()" in source
    assert "metadata.create_all" in source
    for name in ("worker", "resend"):
        assert f"{services[name]['command'][1]}".startswith(f"{module.rpartition('.')[0]}:")


@pytest.mark.parametrize(
    "program", ["check-jsonschema", "hadolint", "kubernetes-validate", "yamllint", "zizmor"]
)
def test_the_linters_are_part_of_the_environment(program: str) -> None:
    assert (Path(sys.executable).parent / program).exists()


SERVING = [(name, words) for name, words in commands() if words[0] in {"broker", "run", "resend"}]


@pytest.mark.parametrize(("name", "words"), SERVING, ids=[name for name, _ in SERVING])
def test_what_alert_rules_are_about_is_served_by_each_daemon(name: str, words: list[str]) -> None:
    assert any(word.startswith("--metrics-port") for word in words), name


@pytest.mark.parametrize(("name", "pod"), pods(), ids=[name for name, _ in pods()])
def test_a_pod_with_metrics_says_where_prometheus_finds_them(
    name: str, pod: dict[str, object]
) -> None:
    for container in pod["containers"]:  # type: ignore[attr-defined]
        if any(word.startswith("--metrics-port") for word in container["args"]):
            assert {"name": "metrics", "containerPort": 9464} in container["ports"]
            assert 'prometheus.io/port: "9464"' in (DEPLOY / "kubernetes" / name).read_text()


def test_the_monitor_of_the_prometheus_operator_reads_each_pod_with_metrics() -> None:
    (monitor,) = documents(DEPLOY / "prometheus" / "podmonitor.yaml")
    spec: Any = monitor["spec"]
    (chosen,) = spec["selector"]["matchExpressions"]
    with_metrics = {
        each["spec"]["template"]["metadata"]["labels"]["app"]  # type: ignore[index]
        for path in MANIFESTS
        for each in documents(path)
        if each["kind"] in {"Deployment", "StatefulSet"}
    }

    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    assert (chosen["key"], chosen["operator"]) == ("app", "In")
    assert set(chosen["values"]) == with_metrics
    assert [each["port"] for each in spec["podMetricsEndpoints"]] == ["metrics"]


def test_the_page_makes_an_object_of_the_rules_for_the_prometheus_operator(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "kubernetes.md").read_text()
    block = page.partition("    cat > head.yaml")[2].partition("    kubectl apply")[0]
    script = "cat > head.yaml" + block.replace("\n    ", "\n")
    rules = DEPLOY / "prometheus" / "reliable_mq.rules.yml"
    shutil.copy(rules, tmp_path)
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True)

    (made,) = documents(tmp_path / "prometheusrule.yaml")
    assert made["kind"] == "PrometheusRule"
    assert [made["spec"]] == documents(rules)
