"""constant_form: callers that ask everybody for the same, and success by whether a needed field is lacking."""

from __future__ import annotations

import numpy as np
from test_factorial import write_run

from lfo.config import RunConfig, build
from lfo.envs import make_environment
from lfo.envs.phone.callers import play_scripted
from lfo.lab.constant_form import CALLERS, form_levels, form_table, lacking
from lfo.lab.hierarchy import tasks_of
from lfo.lab.reading import SPLIT_NAMES

COUNT = 40
ENV = build(RunConfig, {}).env


def test_who_succeeds_where_a_field_is_lacking_and_nowhere_else(tmp_path):
    lack = {split: lacking(ENV, split, COUNT) for split in SPLIT_NAMES}
    outcomes = {split: ["".join(str(int(x)) for x in there)] for split, there in lack.items()}
    table = form_table({"ours": [write_run(tmp_path / "seed0", {}, outcomes)]})
    assert table["arm"].tolist() == [*CALLERS, "ours"] * 2
    ours = table[table["arm"] == "ours"].set_index("companies")
    for split, name in SPLIT_NAMES.items():
        assert ours.loc[name, "share lacking"] == lack[split].mean()
        assert ours.loc[name, "a needed field is lacking"] == "100% [100, 100]"
        assert ours.loc[name, "nothing is lacking"] == "0% [0, 0]"


def test_a_field_is_lacking_where_the_oracle_is_refused_one():
    """Who asks an evaluation's user for all that is needed, and finds that he cannot give it all."""
    built = make_environment(ENV)
    played = [play_scripted(built.world, task, "oracle", built.rules) for task in tasks_of(ENV, "validation")[:COUNT]]
    refused = [bool(episode.unavailable) for episode in played]
    assert lacking(ENV, "validation", COUNT).tolist() == refused and 0 < sum(refused) < COUNT / 2


def test_callers_with_one_form_win_what_they_win(tmp_path):
    """More where they may ask once more; the first of them is the reference policy of that name."""
    table = form_table({"ours": [write_run(tmp_path / "seed0", {}, {"validation": ["0" * COUNT]})]})
    shares = [float(cell.partition("%")[0]) for cell in table["all tasks"][: len(CALLERS)]]
    built = make_environment(ENV)
    wins = [
        play_scripted(built.world, task, "constant-form", built.rules).success
        for task in tasks_of(ENV, "validation")[:COUNT]
    ]
    assert shares[0] == round(100 * np.mean(wins)) > shares[1] > 0


def test_callers_win_at_each_level_what_they_win(tmp_path):
    """The first of them as the reference policy of that name."""
    table = form_levels({"ours": [write_run(tmp_path / "seed0", {}, {"validation": ["0" * COUNT]})]})
    shares = table[table["companies"] == SPLIT_NAMES["validation"]].set_index("arm").loc["constant-form"]
    built, wins = make_environment(ENV), {}
    for task in tasks_of(ENV, "validation")[:COUNT]:
        won = play_scripted(built.world, task, "constant-form", built.rules).success
        wins.setdefault(f"level {task.level}", []).append(won)
    expected = {level: round(100 * np.mean(won)) for level, won in wins.items()}
    assert {level: int(shares[level].partition("%")[0]) for level in wins} == expected and len(wins) == 5
    assert table["arm"].tolist() == [*CALLERS] * 2 and len({*expected.values()}) > 1


def test_where_nobody_lacks_anything_there_is_no_share(tmp_path):
    """Of the one task of an evaluation only one of both is known."""
    outcomes = {split: ["1"] for split in SPLIT_NAMES}
    table = form_table({"ours": [write_run(tmp_path / "seed0", {}, outcomes)]})
    cells = table[["nothing is lacking", "a needed field is lacking"]].to_numpy().tolist()
    assert all("" in row and any(row) for row in cells)
