"""scaling: tables and figures say what the plan says; peaks and speeds are counted right (formulas: test_plan.py)."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch

from lfo.config import load_config
from lfo.envs.phone import PhoneEnvironment, Rules
from lfo.lab.plan import BACKWARD, GIB, LOSS, ROLLOUT, GpuPlan, Item
from lfo.lab.scaling import (
    OTHER,
    PLANNED,
    Way,
    measured_peak,
    memory_figure,
    peak_figure,
    peak_table,
    plan_table,
    rank_table,
    speed_figure,
    speed_table,
    verdict_table,
)

PLANS = {
    "large": [
        GpuPlan(
            "learner",
            6,
            24 * GIB,
            (
                Item("base", 4 * GIB),
                Item("logits", 3 * GIB, (LOSS,)),
                Item("one layer", 5 * GIB, (BACKWARD,)),
                Item("crumbs", 0.1 * GIB),
            ),
        ),
        GpuPlan("vLLM server", 2, 24 * GIB, (Item("engine: weights", 23 * GIB), Item("none", 0)), "room", "too full"),
    ],
    "small": [
        GpuPlan(
            "learner and engine",
            1,
            16 * GIB,
            (
                Item("base", 1 * GIB),
                Item("crumbs", 0.2 * GIB),
                Item("cache", GIB, (ROLLOUT,)),
                Item("less", 0.1 * GIB, (LOSS,)),
            ),
        ),
    ],
}


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_what_ranks_cost(make_config, tiny, monkeypatch):
    """By a clock of one second per look the second rank trains as fast; of the large config it takes more memory."""
    ticks = iter(range(1000))
    monkeypatch.setattr("lfo.lab.scaling.time.perf_counter", lambda: next(ticks))
    env = PhoneEnvironment(tiny, Rules(max_turns=1), levels=(1,))
    table = rank_table(make_config(), env, [4, 64], 1, load_config("configs/qwen3_8b.yaml"))
    assert table["rank"].tolist() == [4, 64] and table.loc[0, ["sampled", "trained"]].tolist() == [1, 1]
    assert table.loc[1, "trained"] == pytest.approx(1, abs=0.2), "as many tokens, but for what was sampled"
    peaks = [name for name in table if name.endswith(", GiB")]
    assert len(peaks) == 2 and table.loc[1, "learner, GiB"] > table.loc[0, "learner, GiB"]  # vLLM takes what it may


def test_tables_by_hand():
    items, verdicts = plan_table(PLANS), verdict_table(PLANS)
    assert set(items["source"]) == set(verdicts["source"]) == {PLANNED} and "none" not in set(items["item"])
    assert items.query("item == 'logits'")[["gib", "needed"]].to_numpy().tolist() == [[3, "loss"]]
    assert items.query("item == 'crumbs'")["needed"].tolist() == ["always", "always"]
    assert verdicts["peak_gib"].tolist() == pytest.approx([9.1, 23, 2.2])
    assert verdicts["peak_at"].tolist() == [BACKWARD, ROLLOUT, ROLLOUT]
    assert verdicts["fits"].tolist() == [True, False, True] and verdicts["note"].tolist() == ["", "room", ""]
    assert verdicts["gpus"].tolist() == ["6 x 24 GiB", "2 x 24 GiB", "1 x 16 GiB"]


def test_bars_reach_the_peaks_and_lines_the_memory():
    """The last kind of GPU does both, so it has two bars."""
    (ax,) = memory_figure(PLANS).axes
    ends: dict = {}
    for bars in ax.containers:
        for i, bar in enumerate(bars):
            ends[i] = max(ends.get(i, 0.0), bar.get_x() + bar.get_width())
    assert [ends[i] for i in range(4)] == pytest.approx([9.1, 23, 2.2, 1.3])
    assert [line.get_xdata()[0] for line in ax.lines] == [24, 24, 16, 16]
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert OTHER in labels and "crumbs" not in labels and "logits" not in labels  # not there at the peak
    assert PLANNED in ax.get_xlabel()
    names = [tick.get_text() for tick in ax.get_yticklabels()]
    assert names[1:3] == ["large, rollout\n2 x vLLM server", "small, rollout\n1 x learner and engine"]


def test_a_peak_is_the_most_at_a_time():
    def action():
        first = torch.zeros(2**20)
        second = torch.zeros(2**19)
        del first
        return torch.zeros(2**18), second

    assert measured_peak(action) == pytest.approx(4 * (2**20 + 2**19), rel=0.01)


def test_peaks_of_updates():
    peaks = peak_table([Way("short", (64,)), Way("long", (256, 256))])
    assert peaks["tokens"].tolist() == [64, 512] and peaks["sequences"].tolist() == [1, 2]
    assert (peaks["measured_mib"].diff().iloc[1] > 1) and (peaks["planned_over_measured"] > 0.5).all()
    (ax,) = peak_figure(peaks).axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["short", "long"]


def test_speeds_count_what_was_sampled_and_trained(make_config, tiny, monkeypatch):
    """A clock that goes one second per look: rates are the tokens themselves; of two repeats the better one counts."""
    ticks = iter(range(1000))
    monkeypatch.setattr("lfo.lab.scaling.time.perf_counter", lambda: next(ticks))
    env = PhoneEnvironment(tiny, Rules(max_turns=1), levels=(1,))
    speeds = speed_table(make_config(), env, tasks=[1, 2])
    assert (
        speeds["rollouts"].tolist() == [2, 4, 2, 4] and speeds["tokens"].tolist() == ["sampled"] * 2 + ["trained"] * 2
    )
    sampled, trained = speeds["tokens_per_second"].to_numpy().reshape(2, 2)
    assert 2 <= sampled[0] <= 2 * 8 and 4 <= sampled[1] <= 4 * 8 and (trained > sampled).all()
    assert len(speed_figure(speeds).axes[0].lines) == 2
