"""One case of the fuzzer that goes through real servers, and what is told of a finding."""

import shutil
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path
from random import Random

from msgspec.structs import replace
from tests.fuzz.attacks import ATTACKS
from tests.fuzz.played import Played
from tests.fuzz.scene import Late, Scene

_SHOWN = 400
_RESTART_SHARE = 0.25
SECURED = "secured "
"""Before the name of an attack: with TLS and access control."""


def play_served(target: str, number: int, flaw: str = "", *, is_secured: bool = False) -> Played:
    """Play one case and return what became of it.

    A case in which somebody was answered late is played again: it is a finding when it is late
    twice. The machine may have had something else to do.
    """
    played = _play(target, number, flaw, is_secured)
    if played.is_late:
        played = _play(target, number, flaw, is_secured)
    return played


def _play(target: str, number: int, flaw: str, is_secured: bool) -> Played:
    played = Played()
    inputs: list[tuple[str, object]] = []
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    random = Random(f"{target}:{number}")
    attack = ATTACKS[target]
    try:
        settings = attack.settings(random)
        ways = replace(settings.ways, flaw=flaw)
        settings = replace(settings, ways=ways, is_secured=is_secured)
        scene = Scene(random, lambda *fed: inputs.append(fed), folder, settings)
        if settings.prepare:
            settings.prepare(folder / "store", random)
        with ExitStack() as stack:
            scene.start(stack)
            stack.callback(scene.close_peers)
            with scene.watched(played):
                attack.play(scene)
            scene.close_peers()
            scene.check_service()
            scene.close_peers()
            if attack.restarts or random.random() < _RESTART_SHARE:
                scene.stop()
                scene.start(stack)
                scene.check_service()
            scene.check_log()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
        shown = [f"  {name}: {str(value)[:_SHOWN]}" for name, value in inputs[-8:]]
        prefix = SECURED if is_secured else ""
        lines = (f"{prefix}{target}:{number} found:", *shown, traceback.format_exc(limit=-4))
        played.finding = "\n".join(lines)
        played.is_late = isinstance(error, Late)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return played
