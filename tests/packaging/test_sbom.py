"""The software bill of materials, and the pins that an auditor reads."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.packaging.sbom import PINS, ROOT, make_bill

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_PIN = re.compile(r"([a-z0-9-]+)==(\S+)( ; .+)?")


def pins() -> dict[str, list[str]]:
    """Return the pinned versions by name; one that depends on the platform may have several."""
    found: dict[str, list[str]] = {}
    for line in PINS.read_text().splitlines():
        if line and not line.startswith("#"):
            pin = _PIN.fullmatch(line)
            assert pin is not None, f"not a pin: {line}"
            found.setdefault(pin[1], []).append(pin[2])
    return found


def requirements() -> list[Requirement]:
    extras = PROJECT["optional-dependencies"].values()
    listed = [*PROJECT["dependencies"], *(each for some in extras for each in some)]
    return [Requirement(each) for each in listed]


def test_every_requirement_has_a_pin_that_it_allows() -> None:
    """Given a new requirement, then `make pins` must run, or the release installs another one."""
    pinned = pins()
    for wanted in requirements():
        name = canonicalize_name(wanted.name)
        if name != "reliable-mq":
            assert name in pinned, f"{name}: run make pins"
            assert any(map(wanted.specifier.contains, pinned[name])), f"{wanted}: run make pins"


def test_pins_name_no_host() -> None:
    assert "://" not in PINS.read_text()


@pytest.mark.packaging
def test_the_bill_lists_the_wheel_and_all_that_it_installs(tmp_path: Path) -> None:
    bill = json.loads(make_bill(tmp_path / "sbom").read_text())

    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "reliable-mq"
    assert bill["metadata"]["component"]["version"] == PROJECT["version"]
    listed = {canonicalize_name(each["name"]): each["version"] for each in bill["components"]}
    core = {canonicalize_name(Requirement(each).name) for each in PROJECT["dependencies"]}
    assert core <= listed.keys()
    assert not listed.keys() & {"pytest", "mypy", "cyclonedx-bom"}
    pinned = pins()
    for name in listed.keys() & pinned.keys():
        assert listed[name] in pinned[name], name
    assert (tmp_path / "sbom" / f"reliable_mq-{PROJECT['version']}-py3-none-any.whl").exists()
