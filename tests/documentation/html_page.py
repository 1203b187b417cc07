"""What a built page of HTML refers to: its anchors, links and resources."""

from html.parser import HTMLParser
from pathlib import Path

_RESOURCES = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
}
_LOADED = {"stylesheet", "icon", "preload", "modulepreload", "prefetch", "preconnect", "manifest"}


class HtmlPage(HTMLParser):
    """The anchors, links, resources and meta names of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.resources: list[str] = []
        self.meta: dict[str, str] = {}
        self.language = ""
        self.titles: list[str] = []  # of the browser's tab
        self.headings = 0  # of the first level
        self.silent_images: list[str] = []
        self._is_title = False
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one tag refers to."""
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        self._is_title = tag == "title"
        self.headings += tag == "h1"
        if tag == "html":
            self.language = given.get("lang", "")
        if tag == "img" and "alt" not in given:
            self.silent_images.append(given.get("src", ""))
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag == "meta" and "name" in given:
            self.meta[given["name"]] = given.get("content", "")
        elif tag == "link" and _LOADED & set(given.get("rel", "").split()):
            self.resources.append(given.get("href", ""))
        elif tag in _RESOURCES and _RESOURCES[tag] in given:
            self.resources.append(given[_RESOURCES[tag]])

    def handle_data(self, data: str) -> None:
        """Note the title."""
        if self._is_title and data.strip():
            self.titles.append(data.strip())
            self._is_title = False
