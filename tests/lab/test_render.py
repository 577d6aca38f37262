"""render: one page that stands alone, in which every token, outcome and advantage can be found again."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest

from lfo.lab.render import (
    COLOURS,
    ROLES,
    advantages_of,
    render_groups,
    rollouts_html,
    save_rollouts,
    show_groups,
    show_rollouts,
)
from lfo.runs import RunFolder
from lfo.types import Call, Role, StopReason, Turn

VOID = {"meta"}


class Page(HTMLParser):
    """Checks that tags are balanced and gathers the marks: (class, label, text)."""

    def __init__(self, text: str):
        super().__init__()
        self.open, self.tags, self.marks, self.text = [], [], [], ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.open += [tag] * (tag not in VOID)
        if tag == "mark":
            self.marks.append([dict(attrs)["class"], "", ""])

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "mark" in self.open:
            self.marks[-1][1 if self.open[-1] == "small" else 2] += data


@pytest.fixture
def rows(codec, make_rollout):
    """A group of two fates, its first rollout with a note, and a group in which both fail."""

    def row(action: str, answer: str, **facts):
        pieces = [codec.encode(text) for text in ("<|task|>Please & thank you<|/task|>", action, answer)]
        return make_rollout(*pieces, turns=[Turn(Call("auth_info_form", {}), answer, "declined")], **facts)

    first = row("<script>alert('x')</script>", "<|obs|>no<|/obs|>", success=True, task_id="train-<1>")
    note = codec.note("memory", codec.reply("maybe"))
    first.tokens, first.roles = first.tokens + note, first.roles + [int(Role.NOTE)] * len(note)
    return [first, row("b", "c", task_id="train-<1>"), *[row("d", "e", group=1, stop=StopReason.MALFORMED)] * 2]


def test_every_token_is_shown_under_its_role(codec, rows):
    page = Page(rollouts_html(codec, rows[:2], [1.0, -1.0]))
    shown = [tuple(mark) for mark in page.marks[len(Role) :]]
    number = [len(codec.encode("<|task|>Please & thank you<|/task|>")), rows[0].roles.count(Role.NOTE)]
    assert shown[0] == ("prompt", f"prompt {number[0]}", " <|task|>Please & thank you<|/task|>")
    assert shown[1][0] == "action" and shown[1][2] == " <script>alert('x')</script>"
    assert shown[3] == ("note", f"note {number[1]}", " <|note|>memory: maybe<|/note|>")
    text = "".join(text.removeprefix(" ") for _, _, text in shown[:4])
    assert text == codec.decode(rows[0].tokens)


def test_outcome_advantage_and_turns_are_told(codec, rows):
    html = rollouts_html(codec, rows, [0.123, -0.456, None, None])
    text = Page(html).text
    assert "train-<1>: 1 of 2 rollouts succeeded" in text
    assert re.search(r"✓ rollout 1 · stop success · reward 1 · advantage \+0\.12 · .*?auth_info_form: declined", text)
    assert re.search(r"✗ rollout 2 · stop max_turns · reward 0 · advantage -0\.46", text)
    assert "t1: 0 of 2 rollouts succeeded: all alike, so dynamic sampling drops the group" in text
    assert text.count("stop malformed · reward 0 · advantage none") == 2


@pytest.mark.parametrize(
    ("settings", "rewarded"),
    [
        ({"ppo": {}}, True),
        ({"policy.learning_rate": 0}, True),
        ({}, False),
    ],
)
def test_where_advantages_decide_nothing_nothing_is_said_of_them(codec, rows, make_config, settings, rewarded):
    player = SimpleNamespace(config=make_config(**settings), coupling=SimpleNamespace(rewarded=rewarded))
    nothing = advantages_of(rows, player)
    text = Page(rollouts_html(codec, rows, nothing)).text
    assert nothing is None and "advantage" not in text and "drops" not in text and text.count("✗") == 3


def test_one_rollout_is_no_group(codec, rows):
    assert "1 of 1 rollouts succeeded" in (text := Page(rollouts_html(codec, rows[:1], [None])).text)
    assert "dynamic sampling drops" not in text


def test_a_scout_is_called_one_and_counts_for_nothing(codec, rows):
    rows[1].scout = True
    text = Page(rollouts_html(codec, rows[:2], [1.0, None])).text
    assert "train-<1>: 1 of 1 rollouts succeeded: all alike" in text
    assert re.search(r"✗ scout 2 · stop max_turns · reward 0 · advantage none", text)


def test_text_is_escaped(codec, rows):
    html = rollouts_html(codec, rows, [0.0] * 4)
    assert "<script" not in html and "train-<1>" not in html and "train-&lt;1&gt;" in html


def test_the_legend_names_every_role(codec):
    page = Page(rollouts_html(codec, [], []))
    assert [(m[0], m[1]) for m in page.marks] == [(role.name.lower(), role.name.lower()) for role in Role]
    assert set(COLOURS) == set(ROLES) == set(Role)
    assert all(meaning in page.text for meaning in ROLES.values())


def test_the_page_stands_alone_and_suits_light_and_dark(codec, rows, tmp_path):
    path = save_rollouts(codec, rows, [0.0] * 4, tmp_path / "new" / "page.html", "a < b")
    page = Page(path.read_text(encoding="utf-8"))
    assert not any({"src", "href"} & set(attributes) for _, attributes in page.tags)
    assert "url(" not in page.text and "@import" not in page.text
    assert ("meta", {"name": "color-scheme", "content": "light dark"}) in page.tags
    assert "mark { color: inherit;" in page.text  # browsers would make it black
    assert "a < b" in page.text


def test_what_has_no_utf8_form_can_be_written(codec, make_rollout, tmp_path):
    row = make_rollout([1], task_id="\ud800")
    assert "&#55296;" in save_rollouts(codec, [row], [0.0], tmp_path / "page.html", "odd").read_text()


def test_a_notebook_shows_the_same(codec, rows):
    assert show_rollouts(codec, rows, [0.0] * 4).data == rollouts_html(codec, rows, [0.0] * 4)


def test_advantages_are_those_of_training(make_rollout, make_config):
    """Two of three succeed: 1/3 and -2/3 over the group's standard deviation; scouts and dropped groups have none."""
    rows = [make_rollout([1], [2], success=won) for won in (True, False, True)]
    rows += [make_rollout([1], [2], scout=True), make_rollout([1], [2], group=1), make_rollout([1], [2], group=1)]
    found = advantages_of(rows, SimpleNamespace(config=make_config(), coupling=SimpleNamespace(rewarded=True)))
    assert found[:3] == pytest.approx([0.5**0.5, -(2**0.5), 0.5**0.5], abs=1e-4) and found[3:] == [None] * 3


@pytest.mark.parametrize(("learn", "shown"), [("successes", False), ("kl", False), ("sampled", True)])
def test_attempts_that_are_imitated_count_for_nothing_by_their_advantage(make_rollout, make_config, learn, shown):
    rows = [make_rollout([1], [2], success=won) for won in (True, False)]
    rows.append(make_rollout([1], [2], actor="base"))
    config = make_config(feedback={"learn": learn, "start": 2})
    found = advantages_of(rows, SimpleNamespace(config=config, coupling=SimpleNamespace(rewarded=True)))
    assert found[0] > 0 > found[1] and (found[2] is not None) == shown


def test_groups_of_a_run_are_played_and_shown(make_config, codec, toy_adapters, tmp_path):
    config = make_config(**{"rollout.max_action_tokens": 4, "world_model.coupling": "imagine", "env.max_turns": 1})
    RunFolder(tmp_path).begin(config)
    (tmp_path / "adapters").mkdir()
    (tmp_path / "adapters" / "v00001").symlink_to(toy_adapters["policy"].parent)
    page = render_groups(tmp_path, 2, tmp_path / "page.html").read_text(encoding="utf-8")
    shown = show_groups([tmp_path / "a clone's", tmp_path], "train", 2).data
    for html in (page, shown):
        assert html.count("of 2 rollouts succeeded") == 2 and html.count("<details") == 4
    assert "no adapters" in show_groups([tmp_path / "a clone's"], "train", 2)
