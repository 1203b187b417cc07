"""A person who reads pages and uses links, fields and buttons by their words, and by nothing else.

Every link that is followed, every field that is filled in and every button that is pressed is a
step. Whoever has two minutes has fifteen seconds for each of eight.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urlencode

from starlette.testclient import TestClient

STEPS_MAX = 8


@dataclass
class Control:
    """A field of a form. `form`: its place among the forms of the page."""

    form: int
    name: str
    value: str
    kind: str
    is_on: bool
    words: set[str] = field(default_factory=set)


@dataclass
class Form:
    """A form, and its buttons: words, name, value."""

    action: str
    method: str
    name: str
    buttons: list[tuple[str, str, str]] = field(default_factory=list)


class ReadPage(HTMLParser):
    """What a page has for a person: its words, its links, and its forms."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.forms: list[Form] = []
        self.controls: list[Control] = []
        self._words: list[str] = []
        self._begun: list[tuple[dict[str, str], int]] = []
        self._labels: list[tuple[str, str]] = []
        self._form_names: dict[str, int] = {}
        self._inside: list[Control] | None = None
        self._is_in_form = False
        self.feed(text)
        for words, name in self._labels:
            for each in self.controls:
                if name and name in each.words:
                    each.words.add(words)

    @property
    def words(self) -> str:
        return " ".join("".join(self._words).split())

    def handle_data(self, data: str) -> None:
        self._words.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        has = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._is_in_form = True
            self._form_names[has.get("id", "")] = len(self.forms)
            self.forms.append(Form(has["action"], has.get("method", "get"), has.get("id", "")))
        elif tag in ("a", "button", "label", "textarea", "option"):
            self._begun.append((has, len(self._words)))
            self._inside = [] if tag == "label" else self._inside
        elif tag in ("input", "select"):
            self._control(has, tag)

    def _control(self, has: dict[str, str], tag: str) -> None:
        if not self.forms:
            return
        kind = has.get("type", "text") if tag == "input" else tag
        is_on = kind not in ("checkbox", "radio") or "checked" in has
        known = {has.get("id", ""), has.get("aria-label", "")}
        made = Control(len(self.forms) - 1, has["name"], has.get("value", ""), kind, is_on, known)
        if has.get("form"):  # it stands elsewhere than its form
            made.form = self._form_names[has["form"]]
        self.controls.append(made)
        if self._inside is not None:
            self._inside.append(made)

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._is_in_form = False
        if tag not in ("a", "button", "label", "textarea", "option") or not self._begun:
            return
        has, at = self._begun.pop()
        words = " ".join("".join(self._words[at:]).split())
        if tag == "a":
            self.links.append((words, has.get("href", "")))
        elif tag == "button" and self._is_in_form:
            self.forms[-1].buttons.append((words, has.get("name", ""), has.get("value", "")))
        elif tag == "textarea":
            text = "".join(self._words[at:]).removeprefix("\n")
            self._control(has | {"type": "text", "value": text}, "input")
        elif tag == "option":
            if "selected" in has:
                self.controls[-1].value = has.get("value", words)
        elif tag == "label":
            self._labels.append((words, has.get("for", "")))
            for each in self._inside or ():
                each.words.add(words)
            self._inside = None


class Person:
    """Somebody at a console, who begins at the overview."""

    def __init__(self, client: TestClient) -> None:
        self._client = client
        self.steps = 0
        self._opens("/")

    def _opens(self, address: str, form: str | None = None) -> None:
        headers = {"content-type": "application/x-www-form-urlencoded"}
        answer: Any = (
            self._client.get(address, follow_redirects=True)
            if form is None
            else self._client.post(address, content=form, headers=headers, follow_redirects=True)
        )
        assert answer.status_code == 200, answer.text
        self.page = ReadPage(answer.text)
        self.address = str(answer.url)

    def sees(self, *texts: str) -> None:
        """Check that the page says this. To look is no step."""
        for text in texts:
            assert text in self.page.words, f"{text!r} is not in {self.page.words}"

    def found(self, pattern: str) -> str:
        """Return what the page says at a place."""
        found = re.search(pattern, self.page.words)
        assert found is not None, f"{pattern} is not in {self.page.words}"
        return found[1]

    def follows(self, words: str) -> None:
        """Follow the first link of these words."""
        self.steps += 1
        found = [address for each, address in self.page.links if each == words]
        assert found, f"no link {words!r} in {self.page.links}"
        self._opens(found[0])

    def looks_again(self) -> None:
        """Load the page again, as its script does."""
        self._opens(self.address)

    def writes(self, label: str, text: str) -> None:
        """Write into the field with this label."""
        self.steps += 1
        self._control(label).value = text

    def chooses(self, label: str) -> None:
        """Mark a box, or choose one of several."""
        self.steps += 1
        chosen = self._control(label)
        for each in self.page.controls:
            if chosen.kind == each.kind == "radio" and each.name == chosen.name:
                each.is_on = False
        chosen.is_on = True

    def _control(self, label: str) -> Control:
        found = [each for each in self.page.controls if label in each.words]
        assert found, f"no field {label!r}: {[each.words for each in self.page.controls]}"
        return found[0]

    def presses(self, words: str) -> None:
        """Press the button of these words."""
        self.steps += 1
        for number, form in enumerate(self.page.forms):
            for each, name, value in form.buttons:
                if each == words:
                    self._sends(
                        form, urlencode([*self._given(number), *([(name, value)] if name else [])])
                    )
                    return
        raise AssertionError(f"no button {words!r}: {[each.buttons for each in self.page.forms]}")

    def _given(self, number: int) -> Iterator[tuple[str, str]]:
        for each in self.page.controls:
            if each.form == number and each.is_on and each.name:
                yield each.name, each.value

    def _sends(self, form: Form, given: str) -> None:
        if form.method == "get":
            self._opens(f"{form.action}?{given}")
        else:
            self._opens(form.action, given)
