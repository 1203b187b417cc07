"""Build the site: `python -m tests.documentation.build` writes it into build/site.

Stages the pages below build/pages, and calls Zensical, in strict mode. The search of the theme
demands every word; ours takes its place, and its index gets the words of users.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.documentation.deployment_pages import downloads
from tests.documentation.navigation import Entry, navigation
from tests.documentation.search_phrases import write_phrases
from tests.documentation.site_search import worker_of
from tests.documentation.staging import ROOT, pages

BUILD = ROOT / "build"
HEAD = ROOT / "docs" / "site.toml"
SEARCH = ROOT / "docs" / "search-worker.js"


def toml_text(entries: list[Entry]) -> str:
    """Return a navigation as an array of TOML on one line."""
    shown = (
        f"{{{json.dumps(title)} = "
        f"{json.dumps(target) if isinstance(target, str) else toml_text(target)}}}"
        for title, target in entries
    )
    return f"[{', '.join(shown)}]"


def stage(folder: Path) -> Path:
    """Write all pages, files to load and the configuration; return the configuration."""
    shutil.rmtree(folder / "pages", ignore_errors=True)
    staged = pages()
    for place, text in staged.items():
        path = folder / "pages" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    for place, path in downloads().items():
        target = folder / "pages" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    shutil.copytree(ROOT / "docs" / "assets", folder / "pages" / "assets", dirs_exist_ok=True)
    head = HEAD.read_text().replace("<root>", json.dumps(str(ROOT))[1:-1])
    configuration = folder / "zensical.toml"
    configuration.write_text(head.replace("[[nav]]", toml_text(navigation(staged))), "utf-8")
    return configuration


def build(folder: Path = BUILD) -> Path:
    """Build the site below a folder; return the folder of the site.

    Raises:
        subprocess.CalledProcessError: a page is wrong; its output says which.
    """
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "site", ignore_errors=True)
    words = ["-m", "zensical", "build", "--strict", "--clean", "-f", str(stage(folder))]
    subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
    shutil.copyfile(SEARCH, worker_of(folder / "site"))
    write_phrases(folder / "site")
    return folder / "site"


if __name__ == "__main__":
    try:
        print(f"the site: {build() / 'index.html'}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
