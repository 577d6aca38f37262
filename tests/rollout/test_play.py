"""play: what the loop writes is what happened; nobody waits for another; nothing is left behind."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Scripted, by_turn, spans
from toy import COUNT, Counter, Counting

from lfo import distributed
from lfo.config import RolloutConfig
from lfo.couplings.plain import BOTH, Plain
from lfo.envs.base import written
from lfo.envs.phone import PhoneEnvironment
from lfo.envs.phone.phrasings import PHRASINGS
from lfo.envs.phone.tools import phone_call, search
from lfo.rollout.engine import Completion, Prompt
from lfo.rollout.play import play
from lfo.text.base import load_tokenizer
from lfo.text.codec import Codec
from lfo.types import Attempt, Call, Role, StopReason, Task, by_group

SEED = 5


# --- the phone world -------------------------------------------------------------------------

SEARCH = written(search("Harbor Bank"))
OFFER = [SEARCH, written(phone_call("800-555-0005"))]


@pytest.fixture(scope="module")
def phone(base_path, tiny) -> Codec:
    return Codec(load_tokenizer(base_path), PhoneEnvironment(tiny))


@pytest.fixture
def attempt(tiny):
    """attempt(task_id, group): a rollout in the small world."""

    def make(task_id: str, group: int = 0, seed: int = 0) -> Attempt:
        return Attempt(next(t for t in tiny.tasks if t.task_id == task_id), group, seed)

    return make


@pytest.fixture
def played(phone):
    """played(answer, attempts, ...): (rollouts, the engine that was asked), every attempt a group of its own."""

    def run(answer, attempts, predict=None, codec=phone, **rollout):
        engine = Scripted(codec, answer)
        groups = [[[a]] for a in attempts]
        return play(engine, codec, groups, Plain(BOTH), RolloutConfig(**rollout), SEED, predict), engine

    return run


def test_a_trajectory_by_hand(played, phone, attempt):
    (row,), engine = played(by_turn(*OFFER), [attempt("offer", group=3)], predict="phone")
    assert (row.task_id, row.group, row.stop, row.success) == ("offer", 3, StopReason.SUCCESS, True)
    assert row.outcome.reward == 1.0 and not row.scout
    request = attempt("offer").task.request
    assert spans(row, phone) == [
        (f"<|task|>{request}<|/task|><|tool|>", Role.PROMPT),  # an opener belongs to what stands before it
        (f"{SEARCH}<|end|>", Role.ACTION),
        (f"<|obs|>{row.turns[0].observation}<|/obs|><|tool|>", Role.OBSERVATION),
        (f"{OFFER[1]}<|end|>", Role.ACTION),
        (f"<|obs|>{row.turns[1].observation}<|/obs|>", Role.OBSERVATION),  # the end: no further action is opened
    ]
    assert row.logprobs == [-0.25 if role == Role.ACTION else 0.0 for role in row.roles]
    assert [turn.action for turn in row.turns] == [search("Harbor Bank"), phone_call("800-555-0005")]
    (example,) = row.examples
    assert phone.decode(example.encoded.reply) == row.turns[1].observation + "<|/csr|>"
    assert example.turns == tuple(row.turns[:1]) and example.request == request
    assert len(engine.prompts) == 2 and engine.ended == [0]


def test_examples_are_made_when_something_is_to_be_predicted(played, attempt):
    assert [len(played(by_turn(*OFFER), [attempt("offer")], p)[0][0].examples) for p in (None, "phone", "all")] == [
        0,
        1,
        2,
    ]


def test_what_the_sampler_is_asked(played, phone, attempt):
    attempts = [attempt("offer", g) for g in range(3)]
    _, engine = played(by_turn(*OFFER), attempts, temperature=0.7, max_action_tokens=50)
    assert all(p.tokens[-1] == phone.opener[0] for p in engine.prompts)
    assert {(p.adapter, p.max_new, p.stop, p.temperature) for p in engine.prompts} == {
        ("policy", 50, phone.end_id, 0.7)
    }
    assert len({p.seed for p in engine.prompts}) == 6, "every action of every row has a random stream of its own"
    again = played(by_turn(*OFFER), attempts[:1])[1]
    assert [p.seed for p in again.prompts] == [p.seed for p in engine.prompts if p.session == 0]


@pytest.mark.parametrize(
    ("actions", "stop", "turns"),
    [
        ([SEARCH], StopReason.MAX_TURNS, 16),
        ([""], StopReason.AGENT_STOPPED, 1),
        (["nonsense"], StopReason.MALFORMED, 3),
        ([SEARCH, ""], StopReason.AGENT_STOPPED, 2),
    ],
)
def test_every_episode_ends(played, attempt, actions, stop, turns):
    (row,), _ = played(by_turn(*actions), [attempt("bill")], max_tokens=100_000)
    assert (row.stop, len(row.turns), row.success) == (stop, turns, False)


def test_an_action_without_end_is_cut_and_does_not_parse(played, attempt):
    (row,), _ = played(by_turn(SEARCH), [attempt("bill")], max_action_tokens=3)
    assert row.stop is StopReason.MALFORMED and [t.tool for t in row.turns] == [""] * 3
    assert sum(role == Role.ACTION for role in row.roles) == 9


def test_the_token_budget_ends_an_episode(played, attempt):
    (free,), _ = played(by_turn(SEARCH), [attempt("bill")], max_tokens=100_000)
    end = len(free.roles) - free.roles[::-1].index(Role.ACTION)  # of the last action
    first = free.roles.index(Role.OBSERVATION)
    length = free.roles[first:].index(Role.ACTION) - 1  # of the first observation, without the next opener
    (row,), _ = played(by_turn(SEARCH), [attempt("bill")], max_tokens=first + length)
    assert (row.stop, len(row.turns), row.success) == (StopReason.TOKEN_BUDGET, 1, False)
    assert row.stop.truncated and len(row.tokens) == first + length < end
    (row,), _ = played(by_turn(SEARCH), [attempt("bill")], max_tokens=first + length + 1)
    assert len(row.turns) == 2


def test_success_on_the_last_token_is_success(played, attempt):
    (row,), _ = played(by_turn(*OFFER), [attempt("offer")])
    (again,), _ = played(by_turn(*OFFER), [attempt("offer")], max_tokens=len(row.tokens))
    assert (again.stop, again.success) == (StopReason.SUCCESS, True)


def test_rollouts_come_group_by_group_in_the_order_of_their_attempts(phone, attempt):
    """Rows end on different turns: hanging up at once, after a search, or by success."""
    wants = {"a charge": [""], "hear about offers": OFFER, "a fraud": [SEARCH, ""]}

    def answer(text, prompt):
        return by_turn(*next(v for k, v in wants.items() if k in text))(text, prompt)

    names = [["offer", "bill"], ["fraud"], ["bill", "offer"]]
    groups = [[[attempt(name, g) for name in part]] for g, part in enumerate(names)]
    engine = Scripted(phone, answer)
    rows = play(engine, phone, groups, Plain(BOTH), RolloutConfig(), SEED)
    assert [(r.task_id, r.group) for r in rows] == [(name, g) for g, part in enumerate(names) for name in part]
    assert [len(r.turns) for r in rows] == [2, 1, 2, 1, 2]
    assert [r.success for r in rows] == [True, False, False, False, True]
    assert sorted(p.session for p in engine.prompts) == [0, 0, 1, 2, 2, 3, 4, 4]  # a row keeps its session
    assert sorted(engine.ended) == [0, 1, 2, 3, 4]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_engine_can_keep_an_episode_open(phone, tiny, data):
    """The contract: whatever ids come, every row has a stop reason, aligned lists, and at most 16 turns."""
    ids = st.integers(0, len(phone.tokenizer) - 1)

    class Monkey(Scripted):
        def complete(self, prompt):
            drawn = data.draw(st.lists(ids, min_size=1, max_size=4))
            return Completion(drawn, [-1.0] * len(drawn))

    groups = [[[Attempt(tiny.tasks[i], i, i)]] for i in range(2)]
    for row in play(Monkey(phone, None), phone, groups, Plain(BOTH), RolloutConfig(max_tokens=400), 0):
        assert isinstance(row.stop, StopReason) and 1 <= len(row.turns) <= 16
        assert len(row.tokens) == len(row.roles) == len(row.logprobs)


@pytest.mark.parametrize("held_out", [False, True])
def test_the_environment_decides_whose_phrasings_are_heard(base_path, played, tiny, attempt, held_out):
    codec = Codec(load_tokenizer(base_path), PhoneEnvironment(tiny, held_out_phrasing=held_out))
    rows, _ = played(by_turn(*OFFER), [attempt("offer", g, seed=g) for g in range(20)], codec=codec)
    messages = {r.turns[-1].observation for r in rows}
    unheard = [variants[-1].format(dept="Sales") for variants in PHRASINGS["success"].values()]
    assert len(messages) > 1
    assert {any(text in message for text in unheard) for message in messages} == {held_out}


# --- the toy environment: groups, waves, who waits for whom ----------------------------------


class Watched(Counting):
    """The toy environment, remembering the episodes that it made."""

    def __init__(self):
        self.made: list[Counter] = []

    def episode(self, task, seed, responder=None):
        self.made.append(super().episode(task, seed, responder))
        return self.made[-1]


@pytest.fixture
def toy(base_path) -> Codec:
    return Codec(load_tokenizer(base_path), Watched())


def say(number: int) -> str:
    return written(Call("count", {"number": str(number)}))


def tries(count: int, group: int = 0, goal: int = 2, **facts) -> list[Attempt]:
    return [Attempt(Task(f"t{goal}", "train", goal), group, 0, **facts) for _ in range(count)]


def test_the_toy_environment_is_played_by_hand(toy):
    """Whoever says the number of the request succeeds; a wrong number may be mended once."""

    def answer(text, prompt):
        return say([2, 1, 1][prompt.session] if "<|obs|>" not in text else [0, 2, 9][prompt.session])

    engine = Scripted(toy, answer)
    right, mended, wrong = play(engine, toy, [[tries(3)]], Plain(BOTH), RolloutConfig(), 0)
    assert toy.decode(right.tokens) == f"<|task|>Count to 2.<|/task|><|tool|>{say(2)}<|end|><|obs|>right<|/obs|>"
    assert [(r.success, len(r.turns), r.stop.value) for r in (right, mended, wrong)] == [
        (True, 1, "success"),
        (True, 2, "success"),
        (False, 2, "max_turns"),
    ]
    assert [episode.closed for episode in toy.env.made] == [True] * 3
    assert COUNT.name == mended.turns[0].tool and mended.turns[0].status == "wrong"


def test_no_row_waits_for_another(toy):
    """One row of three is answered late: the others, and the next wave of the other group, come to their ends first."""
    engine = Scripted(toy, lambda text, prompt: say(1), late=[0])
    groups = [[tries(1, 0)], [tries(1, 1), tries(1, 1)]]
    rows = play(engine, toy, groups, Plain(BOTH), RolloutConfig(), 0)
    assert [r.group for r in rows] == [0, 1, 1]
    assert engine.ended == [1, 2, 0]
    assert [p.session for p in engine.prompts] == [0, 1, 1, 2, 2, 0]


class Remembering(Plain):
    """A coupling that looks at the earlier waves of a row."""

    def __init__(self):
        super().__init__(BOTH)
        self.seen: dict[int, list[int]] = {}

    def before_turn(self, row):
        yield from ()
        self.seen[row.number] = [len(rollout.turns) for rollout in row.earlier]


@pytest.mark.parametrize("late", [[], [1]])
def test_a_wave_begins_when_the_one_before_it_has_ended_and_sees_it(toy, late):
    """The first wave's rows have two turns and one; the second group's have one each."""

    def answer(text, prompt):
        return say(1 if prompt.session == 0 else 2)

    engine, coupling = Scripted(toy, answer, late), Remembering()
    groups = [[tries(2, 0), tries(1, 0), tries(1, 0)], [tries(1, 1), tries(1, 1)]]
    rows = play(engine, toy, groups, coupling, RolloutConfig(), 0)
    assert [r.group for r in rows] == [0, 0, 0, 0, 1, 1]
    assert coupling.seen == {0: [], 1: [], 2: [2, 1], 3: [2, 1, 1], 4: [], 5: [1]}, "in order, whoever was done first"
    first = [p.session for p in engine.prompts]
    assert first.index(2) > max(i for i, session in enumerate(first) if session in (0, 1))
    assert engine.ended.index(3) > engine.ended.index(2) > max(engine.ended.index(0), engine.ended.index(1))


def test_nobody_to_play_is_nobody_played(toy):
    assert play(Scripted(toy, None), toy, [], Plain(BOTH), RolloutConfig(), 0) == []


class Asking(Plain):
    """A coupling whose rows ask the world model something before their first action, and note the answers."""

    def __init__(self, ask):
        super().__init__(BOTH)
        self.ask = ask

    def before_turn(self, row):
        if not row.noted:
            row.noted = True
            prompts = [Prompt([7, n], "world_model", 4, row.codec.reply_end_id, *more) for n, *more in self.ask(row)]
            answers = yield prompts
            for answer in answers:
                row.add(row.codec.note("somebody", answer.tokens), Role.NOTE)


@pytest.mark.parametrize("late", [[], [None]])
def test_the_same_one_off_request_is_asked_once(toy, late):
    """By rows of different groups, before and after it was answered; another seed is another request."""

    def answer(text, prompt):
        return say(2) if prompt.adapter == "policy" else f"{prompt.tokens[1]}"

    engine = Scripted(toy, answer, late)
    groups = [[tries(2, 0), tries(1, 0)], [tries(1, 1)]]
    rows = play(engine, toy, groups, Asking(lambda row: [(9, 0.0), (8, 0.0), (9, 0.0)]), RolloutConfig(), 0)
    asked = [(p.tokens[1], p.session) for p in engine.prompts if p.adapter == "world_model"]
    assert asked == [(9, None), (8, None)]
    notes = "".join(f"<|note|>somebody: {said}<|/note|>" for said in (9, 8, 9))
    assert all(toy.decode(row.tokens).count(notes) == 1 for row in rows) and len(rows) == 4
    engine = Scripted(toy, answer)
    seeds = Asking(lambda row: [(9, 1.0, 3), (9, 1.0, 4), (9, 0.5, 4)])
    play(engine, toy, groups, seeds, RolloutConfig(), 0)
    assert sum(p.adapter == "world_model" for p in engine.prompts) == 3


def test_notes_have_a_role_of_their_own_and_are_not_acted_upon(toy):
    def answer(text, prompt):
        return say(2) if prompt.adapter == "policy" else "hm"

    (row,) = play(Scripted(toy, answer), toy, [[tries(1)]], Asking(lambda row: [(9, 0.0)]), RolloutConfig(), 0)
    assert spans(row, toy) == [
        ("<|task|>Count to 2.<|/task|>", Role.PROMPT),
        ("<|note|>somebody: hm<|/note|>", Role.NOTE),
        ("<|tool|>", Role.PROMPT),
        (f"{say(2)}<|end|>", Role.ACTION),
        ("<|obs|>right<|/obs|>", Role.OBSERVATION),
    ]
    assert sum(p != 0 for p in row.logprobs) == len(toy.encode(say(2))) + 1


class Ending(Plain):
    """A coupling that ends a scout's episode before it acts."""

    def before_turn(self, row):
        yield from ()
        if row.attempt.scout:
            row.episode.step(Call("count", {"number": "2"}))


def test_a_coupling_may_end_an_episode(toy):
    engine = Scripted(toy, lambda text, prompt: say(1))
    scout, other = play(engine, toy, [[tries(1, scout=True) + tries(1)]], Ending(BOTH), RolloutConfig(), 0)
    assert scout.scout and scout.success and len(scout.turns) == 1 and Role.ACTION not in scout.roles
    assert not other.scout and {p.session for p in engine.prompts} == {1}


# --- leaving nothing behind ------------------------------------------------------------------


class Failing(Plain):
    """A coupling that cannot go on, with row 1 before its action."""

    def before_step(self, row, action):
        yield from ()
        if row.number == 1:
            raise OSError("no more")


def test_everything_is_closed_also_where_something_fails(toy):
    """Row 0 has ended already, 1 fails, 2 is waiting; nobody begins the second wave."""
    engine = Scripted(toy, lambda text, prompt: say(2))
    groups = [[tries(1, 0)], [tries(1, 1), tries(1, 1)], [tries(1, 2)]]
    with pytest.raises(OSError, match="no more"):
        play(engine, toy, groups, Failing(BOTH), RolloutConfig(), 0)
    assert [episode.closed for episode in toy.env.made] == [True] * 3
    assert sorted(engine.ended) == [0, 1, 3]


def test_an_engine_that_fails_leaves_no_episode_open(toy):
    class Broken(Scripted):
        def submit(self, prompt):
            if prompt.session == 1:
                raise RuntimeError("out of memory")
            return super().submit(prompt)

    engine = Broken(toy, lambda text, prompt: say(2))
    with pytest.raises(RuntimeError, match="out of memory"):
        play(engine, toy, [[tries(3)]], Plain(BOTH), RolloutConfig(), 0)
    assert [episode.closed for episode in toy.env.made] == [True] * 3
    assert sorted(engine.ended) == [0, 1, 2]


def test_an_engine_that_fails_to_end_a_session_leaves_no_episode_open(toy):
    class Broken(Scripted):
        def end_session(self, session):
            raise RuntimeError("no such session")

    engine = Broken(toy, lambda text, prompt: say(2))
    with pytest.raises(RuntimeError, match="no such session"):
        play(engine, toy, [[tries(3)]], Plain(BOTH), RolloutConfig(), 0)
    assert [episode.closed for episode in toy.env.made] == [True] * 3


def test_episodes_are_closed_where_another_cannot_begin_or_tell_how_it_went(toy, monkeypatch):
    def play_three():
        play(Scripted(toy, lambda text, prompt: say(2)), toy, [[tries(3)]], Plain(BOTH), RolloutConfig(), 0)

    begin = Watched.episode
    with monkeypatch.context() as patch:
        patch.setattr(Watched, "episode", lambda s, *a: begin(s, *a) if len(s.made) < 2 else 1 / 0)
        with pytest.raises(ZeroDivisionError):
            play_three()
    assert [episode.closed for episode in toy.env.made] == [True] * 2
    monkeypatch.setattr(Counter, "outcome", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        play_three()
    assert [episode.closed for episode in toy.env.made] == [True] * 5


def test_an_episode_is_closed_once(toy, monkeypatch):
    closed = []
    monkeypatch.setattr(Counter, "close", lambda self: closed.append(self))
    play(Scripted(toy, lambda text, prompt: say(2)), toy, [[tries(2), tries(1)]], Plain(BOTH), RolloutConfig(), 0)
    assert len(closed) == len(set(map(id, closed))) == 3


# --- several processes -----------------------------------------------------------------------


def test_processes_share_the_groups_and_all_get_all_rollouts(toy, monkeypatch):
    """Each of two processes plays its groups as one process would; sessions and seeds do not change."""

    def answer(text, prompt):
        return say(prompt.seed % 3)

    groups = [[tries(2, g), tries(1, g)] for g in range(3)]
    alone = Scripted(toy, answer)
    expected = play(alone, toy, groups, Plain(BOTH), RolloutConfig(), 0)
    engines, parts = [], []

    def join(mine, results):
        parts.append(dict(zip(mine, results, strict=True)))
        return [results[0]] * 0

    monkeypatch.setattr(distributed, "join", join)
    monkeypatch.setattr(distributed, "size", lambda: 2)
    for rank in range(2):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        engines.append(Scripted(toy, answer))
        play(engines[-1], toy, groups, Plain(BOTH), RolloutConfig(), 0)
    assert [sorted(part) for part in parts] == [[0, 2], [1]]
    together = parts[0] | parts[1]
    assert [row for i in sorted(together) for row in together[i]] == expected
    assert sorted(p.session for e in engines for p in e.prompts) == sorted(p.session for p in alone.prompts)
    assert {p.seed for e in engines for p in e.prompts} == {p.seed for p in alone.prompts}
    assert by_group(expected).keys() == {0, 1, 2} and len({tuple(r.tokens) for r in expected}) > 1
