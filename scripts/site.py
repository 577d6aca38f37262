"""A hook of MkDocs: the site has the repository's own folders, so that links between pages are the same in both."""

import posixpath
import re
from pathlib import Path

from mkdocs.plugins import event_priority, get_plugin_logger
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).resolve().parents[1]
IN_NAV = "README.md CHANGELOG.md docs/*.md notebooks/*.ipynb results/*.ipynb data/*.md data/*/README.md".split()
IN_NAV += ["benchmarks/README.md", "integrations/*/README.md"]
BESIDE = "CITATION.cff configs/*.yaml docs/*.png results/*.png results/first_round/**/*.md".split()
BESIDE += ["results/first_round/*.png"]
LINK = re.compile(r'(<a\b[^>]*\bhref=")([^"#:]+)(?=["#])')  # to a file, not to an anchor or elsewhere


@event_priority(100)  # before mkdocs-jupyter, which makes pages of notebooks
def on_files(files, config):
    """What the theme brings stays; everything else has the path that it has in the repository."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*theme, *_found(config, IN_NAV, True), *_found(config, BESIDE, False)])


def _found(config, patterns: list[str], in_nav: bool) -> list[File]:
    level = InclusionLevel.INCLUDED if in_nav else InclusionLevel.NOT_IN_NAV
    uris = sorted({path.relative_to(ROOT).as_posix() for pattern in patterns for path in ROOT.glob(pattern)})
    return [File(uri, str(ROOT), config.site_dir, config.use_directory_urls, inclusion=level) for uri in uris]


def on_page_content(html, page, config, files):
    """mkdocs-jupyter leaves a notebook's links as they stand: they become those of the site, as in pages."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    folder = posixpath.dirname(page.file.src_uri)

    def linked(found: re.Match) -> str:
        if file := files.get_file_from_path(posixpath.normpath(posixpath.join(folder, found[2]))):
            return found[1] + file.url_relative_to(page.file)
        get_plugin_logger("site").warning("%s links to %s, which is not there", page.file.src_uri, found[2])
        return found[0]

    return LINK.sub(linked, html)
