"""What stands in README and docs/ is what results/ says now, checked on files written by hand too."""

import subprocess
import sys
from pathlib import Path

import pytest

from lfo import config
from lfo.lab import pages

ROOT = Path(__file__).resolve().parents[2]


def test_pages_say_what_results_say():
    for path, places in pages.parts(ROOT).items():
        page = path.read_text(encoding="utf-8")
        for name, text in places.items():
            assert pages.filled(page, name, text) == page, f"{path.name} is stale: run `lfo readme`"


def test_readme_has_its_five_rows():
    text = pages.headline(ROOT / "results")
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")][1:] == [
        f"| {row}" for row, *_ in pages.ROWS
    ]
    assert "Verdict: " in text


SUMMARY = """arm,metric,split,median,low,high,seeds,source
baseline_320,success_at_320,validation,0.18,0.1,0.274,5,x
baseline_320,success_at_320,test,0.2,0.2,0.2,3,x
imagine,success_at_320,validation,0.9,0.8,1,5,x
imagine,told_truth,validation,0.9,0.8,1,5,x
imagine,told_truth,test,1,1,1,5,x
"""
VERDICTS = """claim,low,high,seeds,verdict
"known companies: 5 times fewer tasks to 70%, interval from 3 (the aim)",4,inf,5,supported
"new companies: 5 times fewer tasks to 70%, interval from 3 (the aim)",2,inf,5,refuted
new companies: 5 times fewer tasks to 70%,2,inf,5,undecided
"""
CONTROLS = """claim,split,rival,lead,low,high,seeds,verdict
imagine is better than every control,validation,none,0.1,0.1,0.1,5,supported
imagine is better than every control,test,none,0.1,0.1,0.1,5,supported
rank 64 is better,test,none,0.1,0.1,0.1,5,refuted
"""


@pytest.fixture
def root(tmp_path):
    """A repository with three pages and two rows of results."""
    (tmp_path / "results").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "results" / "summary.csv").write_text(SUMMARY)
    (tmp_path / "results" / "04_told.md").write_text("| a |\n")
    (tmp_path / "README.md").write_text("Ours.\n<!-- headline -->\nold\n<!-- /headline -->\nOurs, too.\n")
    (tmp_path / "docs" / "results.md").write_text("<!-- tables --><!-- /tables -->")
    (tmp_path / "docs" / "settings.md").write_text("<!-- old settings -->\n<!-- /old settings -->")
    return tmp_path


def test_rows_are_medians_with_intervals_in_percent(root):
    lines = pages.headline(root / "results").splitlines()
    assert lines[0].endswith("over 3 to 5 seeds:")
    assert [line for line in lines if "%" in line and line.startswith("|")] == [
        "| baseline | DAPO on success alone, tuned for as many tasks | 18% [10, 27] | 20% [20, 20] |",
        "| told the truth | `imagine`'s policy, told what is really demanded | 90% [80, 100] | 100% [100, 100] |",
    ]  # `imagine` itself lacks a split here


def test_the_verdict_is_that_of_the_tables(root):
    assert "Verdict" not in pages.headline(root / "results")
    (root / "results" / "04_verdicts.csv").write_text(VERDICTS)
    (root / "results" / "04_controls.csv").write_text(CONTROLS)
    text = " ".join(pages.headline(root / "results").split())
    assert "is **supported** at known companies and **refuted** at new ones;" in text
    assert text.endswith("every control that was run is **supported** at known and at new companies.")


def test_without_results_the_row_says_how_to_make_them(root):
    (root / "results" / "summary.csv").unlink()
    assert "make notebooks" in pages.headline(root / "results")


def test_only_the_marked_places_are_written(root):
    written = pages.write_pages(root)
    assert [path.relative_to(root).as_posix() for path in written] == [
        "README.md",
        "docs/results.md",
        "docs/settings.md",
    ]
    readme = (root / "README.md").read_text()
    assert readme.startswith("Ours.\n<!-- headline -->\nSuccess") and "\nold\n" not in readme
    assert readme.endswith("\n<!-- /headline -->\nOurs, too.\n")
    assert pages.TABLES["04_told"] in (root / "docs" / "results.md").read_text()
    before = [path.read_text() for path in written]
    pages.write_pages(root)
    assert [path.read_text() for path in written] == before


@pytest.mark.parametrize("page", ["", "<!-- a -->", "<!-- /a --><!-- a -->", "<!-- a --><!-- /a --><!-- a -->"])
def test_a_page_without_its_place_is_refused(page):
    with pytest.raises(pages.PageError, match="<!-- a -->"):
        pages.filled(page, "a", "text")


def test_every_old_setting_is_listed():
    text = pages.old_settings()
    for name in {**config.RENAMED, **config.GONE}:
        assert f"| `{name}` |" in text


def test_pages_load_no_model_library():
    code = "import sys; import lfo.lab.pages; print({'torch', 'matplotlib', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "set()"
