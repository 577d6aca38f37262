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


def test_readme_shows_what_was_measured():
    """Every row, as soon as there are results; before that, how to make them."""
    text = pages.headline(ROOT / "results")
    if not (ROOT / "results" / "summary.csv").exists():
        assert text == "No arm was measured yet in these worlds: `make notebooks`."
        return
    for notes, what in pages.ROWS.items():
        assert f"| {notes} | {what} | " in text, f"{notes} was not measured"
    assert text.count("**") >= 4, "there are verdicts on every hypothesis"


HEAD = "arm,policy,notes,world,circumstances,replies,metric,split,median,low,high,runs,source\n"


def row(
    arm: str, policy: str, notes: str, split: str, median: float, runs=15, world="all", metric="success", grid="runs"
):
    source = f"results/{grid}/{arm}/*/metrics.jsonl"
    return (
        f"{arm},{policy},{notes},{world},4,reasons,{metric},{split},{median},{median - 0.1:.1f},1.0,{runs},{source}\n"
    )


SUMMARY = HEAD + "".join(
    [
        row("backoff_frozen", "frozen", "backoff", "validation", 0.5, runs=6),
        row("backoff_frozen", "frozen", "backoff", "test", 0.4),
        row("backoff_frozen", "frozen", "backoff", "test", 0.9, world=1),  # one world is no row
        row("backoff_frozen", "frozen", "backoff", "test", 0.9, metric="area"),
        row("imagine", "trained", "world model", "test", 0.8),
        row("imagine_silent", "trained", "world model", "test", 0.2),  # the same cell: the first arm counts
        row("vote_frozen", "frozen", "vote", "test", 0.3, runs=99),  # which README does not show
        row("nearest", "frozen", "nearest", "test", 0.7, grid="dials/replies=list,circumstances=4"),  # at a position
        row("boosted_frozen", "frozen", "boosted", "test", 0.7, grid="confirm"),  # in other worlds
        row("boosted_frozen", "frozen", "boosted", "test", 0.7, grid="confirm", world=9),
    ]
)
VERDICTS = """claim,split,value,low,high,runs,p,verdict
imagine is ahead of every control: none,validation,0.1,0.1,0.1,15,0.01,supported
imagine is ahead of every control: none,test,0.1,0.1,0.1,15,0.01,supported
imagine is ahead of every control: table,validation,0.1,0.1,0.1,15,0.01,supported
imagine is ahead of every control: table,test,0.1,0.1,0.1,15,0.3,undecided
training adds 10 points: table,test,0.1,0.1,0.1,15,0.01,refuted
training adds 10 points: imagine,test,0.1,0.1,0.1,15,0.3,undecided
imagine knows: aim,validation,0.5057,0.4743,0.5174,15,0.01,refuted
imagine is faster: baseline,validation,,,,15,1.0,undecided
imagine is faster: baseline,test,,,,15,1.0,undecided
imagine needs 3 times fewer: baseline,test,3.4,3.1,4,15,1.0,supported
"imagine_silent, silent where unsure, is as good: imagine",validation,-0.1,-0.13,-0.02,15,1.0,undecided
"""


@pytest.fixture
def root(tmp_path):
    """A repository with three pages, two rows of results and a table for each page of tables."""
    (tmp_path / "results").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "results" / "summary.csv").write_text(SUMMARY)
    (tmp_path / "results" / "04_attempts.md").write_text("| a |\n")
    (tmp_path / "results" / "08_attempts.md").write_text("| b |\n")
    (tmp_path / "README.md").write_text("Ours.\n<!-- headline -->\nold\n<!-- /headline -->\nOurs, too.\n")
    for page in (pages.OTHER_TABLES, pages.FEEDBACK_TABLES):
        (tmp_path / "docs" / page).write_text("<!-- tables --><!-- /tables -->")
    return tmp_path


def test_rows_are_medians_with_intervals_in_percent(root):
    lines = pages.headline(root / "results").splitlines()
    assert lines[0].startswith(
        "Greedy success, all levels (4 kinds of circumstances, replies with reasons), after 320 tasks"
    )
    assert lines[1].startswith("interval, 6 to 15 runs in 1 worlds")
    budgets = [config.load_config(ROOT / "configs" / f"{name}.yaml").task_budget for name in ("laptop", "baseline")]
    assert budgets == [320, 800], "as the caption says"
    assert [line for line in lines if line.startswith("| ")][1:] == [  # no row of arms that were not run
        f"| backoff | {pages.ROWS['backoff']} | 50% [40, 100] | 40% [30, 100] |  |  |",
        f"| world model | {pages.ROWS['world model']} |  |  |  | 80% [70, 100] |",
    ]


def test_all_cells_are_filled_where_everything_was_run(root):
    cells = [
        (notes, policy, split) for notes in pages.ROWS for policy in ("frozen", "trained") for split in pages.PLACES
    ]
    rows = [row("arm", policy, notes, split, 0.5) for notes, policy, split in cells]
    (root / "results" / "summary.csv").write_text(HEAD + "".join(rows))
    lines = [line for line in pages.headline(root / "results").splitlines() if line.startswith("| ")]
    assert len(lines) == 1 + len(pages.ROWS) and all(line.count("50% [40, 100]") == 4 for line in lines[1:])
    assert "interval, 15 runs in" in pages.headline(root / "results")


def test_a_hypothesis_is_as_good_as_all_of_its_claims(root):
    assert "**" not in pages.headline(root / "results")
    (root / "results" / "04_verdicts.csv").write_text(VERDICTS)
    assert [line for line in pages.headline(root / "results").splitlines() if line.startswith("- ")] == [
        "- imagine is ahead of every control: known **supported** (2 of 2), new **undecided** (1 of 2)",
        "- training adds 10 points: new **refuted** (0 of 2; refuted by table)",
        "- imagine knows: known **refuted** (51 [47, 52] points)",
        "- imagine is faster: **undecided** (never got there)",
        "- imagine needs 3 times fewer: new **supported** (3.4 [3.1, 4.0])",
    ]


def test_few_who_refute_a_hypothesis_are_named_more_are_counted(root):
    for names, said in ((("a", "b"), "refuted by a and b"), (("a", "b", "c"), "3 refute it")):
        rows = "".join(f"ahead of every control: {name},test,0,0,0,15,0.01,refuted\n" for name in names)
        (root / "results" / "04_verdicts.csv").write_text("claim,split,value,low,high,runs,p,verdict\n" + rows)
        line = f"- ahead of every control: new **refuted** (0 of {len(names)}; {said})"
        assert line in pages.headline(root / "results").splitlines()


def test_figures_are_shown_where_they_were_drawn(root):
    assert "![" not in pages.headline(root / "results")
    (root / "results" / "04_dials.png").write_bytes(b"")
    *_, last = pages.headline(root / "results").splitlines()
    assert last == f"![{pages.FIGURES['04_dials']}](results/04_dials.png)"


def test_arms_that_readme_does_not_show_are_no_results(root):
    (root / "results" / "summary.csv").write_text(HEAD + row("vote_frozen", "frozen", "vote", "test", 0.3))
    assert "No arm was measured yet" in pages.headline(root / "results")


def test_without_results_the_row_says_how_to_make_them(root):
    (root / "results" / "summary.csv").unlink()
    assert pages.headline(root / "results") == "No arm was measured yet in these worlds: `make notebooks`."


def test_only_the_marked_places_are_written(root):
    written = pages.write_pages(root)
    assert [path.relative_to(root).as_posix() for path in written] == [
        "README.md",
        "docs/tables.md",
        "docs/feedback_tables.md",
    ]
    readme = (root / "README.md").read_text()
    assert readme.startswith("Ours.\n<!-- headline -->\nGreedy") and "\nold\n" not in readme
    assert readme.endswith("\n<!-- /headline -->\nOurs, too.\n")
    for page, name, table in (("tables", "04_attempts", "| a |"), ("feedback_tables", "08_attempts", "| b |")):
        shown = f"<!-- tables -->\n{pages.TABLES[name]}\n\n{table}\n\n`results/{name}.csv`\n<!-- /tables -->"
        assert (root / "docs" / f"{page}.md").read_text() == shown, "under it stands where it is for programs"
    before = [path.read_text() for path in written]
    pages.write_pages(root)
    assert [path.read_text() for path in written] == before


@pytest.mark.parametrize("page", [pages.OTHER_TABLES, pages.FEEDBACK_TABLES])
def test_a_page_of_tables_is_not_cut_by_viewers(page):
    assert (ROOT / "docs" / page).stat().st_size < 500_000, "give some of its tables a page of their own (`page_of`)"


@pytest.mark.parametrize("page", ["", "<!-- a -->", "<!-- /a --><!-- a -->", "<!-- a --><!-- /a --><!-- a -->"])
def test_a_page_without_its_place_is_refused(page):
    with pytest.raises(pages.PageError, match="<!-- a -->"):
        pages.filled(page, "a", "text")


def test_pages_load_no_model_library():
    code = "import sys; import lfo.lab.pages; print({'torch', 'matplotlib', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "set()"
