"""constant_form: a caller that asks everybody for the same, and success by whether a needed field is lacking."""

from __future__ import annotations

import numpy as np
from test_factorial import write_run

from lfo.config import EnvConfig, RunConfig, build
from lfo.envs import make_environment
from lfo.envs.phone.callers import play_scripted
from lfo.lab.constant_form import FORM, form_table, lacking
from lfo.lab.hierarchy import tasks_of
from lfo.lab.reading import SPLIT_NAMES

COUNT = 40


def test_who_succeeds_where_a_field_is_lacking_and_nowhere_else(tmp_path):
    env = build(RunConfig, {}).env
    lack = {split: lacking(env, split, COUNT) for split in SPLIT_NAMES}
    assert all(0.05 < there.mean() < 0.5 for there in lack.values()), "a fifth of all tasks"
    outcomes = {split: ["".join(str(int(x)) for x in there)] for split, there in lack.items()}
    settings = {"env": {"world_seed": env.world_seed}}
    table = form_table({"ours": [write_run(tmp_path / "seed0", settings, outcomes, env.world_seed)]})
    assert table["arm"].tolist() == [FORM, "ours"] * 2
    ours = table[table["arm"] == "ours"].set_index("companies")
    for split, name in SPLIT_NAMES.items():
        assert ours.loc[name, "share lacking"] == lack[split].mean()
        assert ours.loc[name, "a needed field is lacking"] == "100% [100, 100]"
        assert ours.loc[name, "nothing is lacking"] == "0% [0, 0]"
    form = table[table["arm"] == FORM].iloc[0]["all tasks"]
    wins = [_wins(env, task) for task in tasks_of(env, "validation")[:COUNT]]
    assert form.startswith(f"{100 * np.mean(wins):.0f}%") and 0 < np.mean(wins) < 0.4


def _wins(env: EnvConfig, task) -> bool:
    built = make_environment(env)
    return play_scripted(built.world, task, FORM, built.rules).success


def test_where_nobody_lacks_anything_there_is_no_share(tmp_path):
    """Of the one task of an evaluation only one of both is known."""
    outcomes = {split: ["1"] for split in SPLIT_NAMES}
    table = form_table({"ours": [write_run(tmp_path / "seed0", {}, outcomes)]})
    cells = table[["nothing is lacking", "a needed field is lacking"]].to_numpy().tolist()
    assert all("" in row and any(row) for row in cells)
