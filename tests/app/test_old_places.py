"""Names that pages showed at another place go on to work there, with one warning."""

import warnings
from importlib import import_module

import pytest

from reliable_mq.old_names import PLACES

MOVED = [(module, name, home) for module, names in PLACES.items() for name, home in names.items()]


@pytest.mark.parametrize(("module", "name", "home"), MOVED)
def test_a_name_is_found_at_its_old_place_and_warns_once(module: str, name: str, home: str) -> None:
    place, _, now = home.rpartition(".")
    names: dict[str, object] = {}
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        exec(compile(f"from {module} import {name}", "their_module.py", "exec"), names)
    assert [(each.category, each.filename) for each in told] == [
        (DeprecationWarning, "their_module.py")
    ]
    assert str(told[0].message) == f"{module}.{name} is called {home} now"
    assert names[name] is getattr(import_module(place), now)


@pytest.mark.parametrize("module", PLACES)
def test_a_name_that_never_was_there_is_refused(module: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Never'"):
        _ = import_module(module).Never
