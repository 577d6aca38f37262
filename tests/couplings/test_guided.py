"""feedback: waves, who acts, what is told and in which order, and the contexts in which the policy learns of it."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
from calling import BILLING, CALL, FORM, REPLY, SEARCH, notes_of, playing
from scripted import Scripted, spans
from toy import Counting, Guessing

from lfo import distributed
from lfo.config import COUPLINGS, ConfigError, FeedbackConfig, ModelConfig, RunConfig, WorldModelConfig
from lfo.couplings import Echo, Guided, Imagine, Plain, alone, make_coupling
from lfo.couplings.feedback import SOURCE, accumulated
from lfo.couplings.plain import ALONE, SHARED
from lfo.envs.base import written
from lfo.envs.phone.tools import phone_call, search
from lfo.envs.phone.user import UserSimulator
from lfo.lab.retry import Retry
from lfo.rollout.play import Row, play
from lfo.types import Call, Encoded, Example, Feedback, Role, Sample

PAID = written(phone_call(BILLING, {"account_number": "123456", "billing_zip": "22222"}))
MISSING = ["Billing", "account number", "billing ZIP code"]


def config(world_model=None, **feedback) -> RunConfig:
    w = WorldModelConfig(**world_model) if world_model else None
    few = {"start": 2, "updates": 0}  # groups of three
    return RunConfig(feedback=FeedbackConfig(**few | feedback), world_model=w, task_budget=100)


@pytest.fixture
def guided(bank):
    """guided(inner, **feedback): the coupling, around one that does nothing."""

    def make(inner=None, world_model=None, **feedback) -> Guided:
        return Guided(config(world_model, **feedback), bank, inner or Plain(ALONE))

    return make


@pytest.fixture
def group(bank, attempt):
    """group(coupling, answer, size, task): the rollouts of one group in its waves, and the engine."""

    def run(coupling, answer, size=3, task="bill"):
        engine = Scripted(bank, answer)
        waves = coupling.waves(attempt(task).task, 0, 0, size)
        return play(engine, bank, [waves], coupling, coupling.config.rollout, 5, "phone"), engine

    return run


def acts(tokens, logprobs, roles) -> list[tuple]:
    """The action tokens, each with its log-probability."""
    return [(t, p) for t, p, role in zip(tokens, logprobs, roles, strict=True) if role == Role.ACTION]


def told(row, bank) -> list[str]:
    return notes_of(row, bank, Role.FEEDBACK)


# --- waves -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "wave", "sizes"),
    [(2, 0, [1, 7]), (3, 0, [2, 6]), (5, 0, [4, 4]), (2, 1, [1] * 8), (3, 4, [2, 4, 2]), (9, 0, [8])],
)
def test_waves(guided, attempt, start, wave, sizes):
    waves = guided(start=start, wave=wave, learn="kl").waves(attempt("bill").task, 7, 3, 8)
    assert [len(one) for one in waves] == sizes
    assert [a.position for one in waves for a in one] == list(range(1, 9))
    assert {(a.group, a.seed) for one in waves for a in one} == {(7, 3)}


def test_scouts_come_first_and_have_no_place(guided, attempt, bank):
    waves = guided(Plain(ALONE, scouts=2)).waves(attempt("bill").task, 0, 0, 6)
    assert [[(a.scout, a.position) for a in wave] for wave in waves] == [
        [(True, 0), (True, 0), (False, 1)],
        [(False, 2), (False, 3), (False, 4)],
    ]


def test_a_share_of_the_groups_gets_feedback_and_it_decays(guided, attempt):
    def count(groups, **settings):
        coupling = guided(**settings)
        return sum(len(coupling.waves(attempt("bill").task, i, 0, 4)) > 1 for i in groups)

    assert count(range(100), share=1.0) == 100 and count(range(100), share=0.0) == 0
    assert 30 < count(range(100), share=0.5) < 70
    early, late = count(range(50), decay=True), count(range(50, 100), decay=True)
    assert early > 30 > late and count([100], decay=True) == 0
    (wave,) = guided(share=0.0).waves(attempt("bill").task, 0, 0, 4)
    assert [a.position for a in wave] == [0] * 4, "without feedback there are no places"


# --- what is told ----------------------------------------------------------------------------


def by_session(*ways):
    """The n-th rollout acts in the n-th way."""
    return lambda text, prompt: playing(*ways[min(prompt.session or 0, len(ways) - 1)])(text, prompt)


def test_a_later_rollout_reads_of_exactly_the_failed_attempts_before_it(guided, group, bank):
    """One by one: the first hands nothing over, the second a form that is declined as well; the third succeeds."""
    greedy = f"auth_info_form<|args|>{json.dumps({'fields': ['name', 'email', 'branch_code', 'billing_zip']})}"
    ways = (SEARCH, FORM, CALL, ""), (SEARCH, greedy, CALL, ""), (SEARCH, FORM, PAID), (SEARCH, FORM, CALL, "")
    rows, _ = group(guided(wave=1, teacher="live"), by_session(*ways), 4)
    assert [row.success for row in rows] == [False, False, True, False]
    first, second, third, fourth = (told(row, bank) for row in rows)
    assert first == [] and len(second) == 1 and all(words in second[0] for words in MISSING)
    assert third[: len(second)] == second and any("and was declined" in note for note in third)
    assert fourth == third, "of a success there is nothing to tell"
    assert [row.position for row in rows] == [1, 2, 3, 4]


def test_who_mistakes_a_value_at_first_does_so_in_every_attempt(guided, bank, attempt, tiny):
    """An attempt is a new episode of the same user: what was understood in the last one has to be understood again."""
    task = attempt("bill").task
    truth = tiny.profiles[task.profile_id]
    users = ((seed, UserSimulator(truth, f"{seed}/bill")) for seed in range(1_000))
    seed = next(seed for seed, user in users if user.give("account_number") != truth.values["account_number"])
    coupling = guided(wave=1)
    waves = coupling.waves(task, 0, seed, 3)
    engine = Scripted(bank, playing(SEARCH, FORM, CALL, ""))
    rows = play(engine, bank, [waves], coupling, coupling.config.rollout, 5, "phone")
    forms = [turn.observation for row in rows for turn in row.turns if turn.tool == "auth_info_form"]
    given = [re.findall(r'"account_number": "(\w+)"', form) for form in forms]
    assert len(given) == 3 and len(given[0]) == 1
    assert given[0] == given[1] == given[2] != [truth.values["account_number"]]


def test_feedback_stands_after_the_directory_and_before_the_form(guided, group, bank):
    (_, again, _), _ = group(guided(), playing(SEARCH, FORM, CALL, ""))
    texts = spans(again, bank)
    (at,) = (i for i, (_, role) in enumerate(texts) if role is Role.FEEDBACK)
    assert texts[at - 1][1] is Role.OBSERVATION and '"departments"' in texts[at - 1][0]
    assert texts[at + 2][0].startswith("auth_info_form")
    assert texts[at][0].startswith(f"<|note|>{SOURCE}: Gave nothing.")


def test_a_wave_knows_only_of_the_waves_before(guided, group, bank):
    rows, _ = group(guided(start=3), playing(SEARCH, FORM, CALL, ""), 5)
    assert [len(told(row, bank)) for row in rows] == [0, 0, 1, 1, 1], "the same words are told once"


@pytest.mark.parametrize(("teacher", "plays"), [("base", "base"), ("average", "average"), ("live", "policy")])
def test_who_plays_with_feedback(guided, group, teacher, plays):
    coupling, actors = guided(teacher=teacher), ["policy", plays, plays]
    rows, engine = group(coupling, playing(SEARCH, FORM, CALL, ""))
    assert [row.actor for row in rows] == actors
    assert coupling.layout.names == (("policy", "average") if teacher == "average" else ("policy",))
    assert {(p.session, p.adapter) for p in engine.prompts} == set(enumerate(actors))
    assert [row.guided for row in rows] == [False, True, True]


def test_where_nobody_failed_nobody_is_told(guided, group, bank):
    rows, _ = group(guided(), playing(SEARCH, FORM, PAID))
    assert all(row.success and not row.guided and not told(row, bank) for row in rows)


def record(attempt: int, about: str, text: str, score: float = 0.0) -> Feedback:
    return Feedback("missing_auth", about, text, score, attempt)


def test_how_attempts_accumulate():
    a, b, c, d = record(1, "x", "one"), record(1, "y", "two"), record(2, "x", "three"), record(2, "x", "one")
    assert accumulated([a, b, c, d], "all") == [d, b, c], "the same words once"
    assert accumulated([a, b, c], "last") == [c] and accumulated([], "last") == []
    assert accumulated([a, b, c], "summary") == [b, c], "the oldest, which goes first where room is short, comes first"
    written = [
        Feedback(kind, "", text, 0.0) for kind, text in (("written", "p"), ("malformed_call", "q"), ("written", "r"))
    ]
    assert accumulated(written, "summary") == written[1:], "one about nobody does not oust another kind"


def test_one_attempt_has_so_many_tokens_whole_records_only(guided, bank):
    records = [record(0, "", text) for text in ("a b c", "d e f", "g")]
    *_, last = (sum(len(bank.encode(one.text)) for one in records[:k]) for k in (1, 2))
    assert guided(max_tokens=last)._within(records) == records[:2]
    assert guided(max_tokens=last - 1)._within(records) == records[:1]
    assert guided(max_tokens=1)._within(records) == []


@pytest.mark.parametrize("count", [-1, 0, 1])
def test_feedback_takes_no_more_than_half_of_what_is_left(guided, bank, attempt, count):
    """Two notes of which one fits: the oldest goes first. None where other notes have taken more than there was."""
    coupling = guided()
    row = Row(attempt("bill"), 0, 0, bank, None)
    row.told = [bank.note(SOURCE, bank.encode(text)) for text in ("old", "new")]
    row.episode.step(search("Harbor Bank"))
    room = {-1: -1, 0: len(row.told[1]) - 1, 1: sum(map(len, row.told)) - 1}[count]
    rollout = dataclasses.replace(coupling.config.rollout, max_tokens=len(row.tokens) + 2 * room)
    coupling.config = dataclasses.replace(coupling.config, rollout=rollout)
    assert list(coupling.before_turn(row)) == [] == row.told
    assert told(row, bank) == [f"{SOURCE}: new"] * max(0, count)


def test_processes_share_the_groups_and_each_has_whole_waves(guided, bank, attempt, monkeypatch):
    """Each of two processes plays its groups, waves and all, as one process would."""
    coupling, settings = guided(teacher="base"), RunConfig().rollout
    groups = [coupling.waves(attempt("bill").task, i, 0, 3) for i in range(3)]
    answer = playing(SEARCH, FORM, CALL, "")
    expected = play(Scripted(bank, answer), bank, groups, coupling, settings, 5)
    parts = {}
    monkeypatch.setattr(distributed, "join", lambda mine, found: parts.update(zip(mine, found, strict=True)) or [])
    monkeypatch.setattr(distributed, "size", lambda: 2)
    for rank in range(2):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        play(Scripted(bank, answer), bank, groups, coupling, settings, 5)
    assert [row for _, rows in sorted(parts.items()) for row in rows] == expected
    assert [row.guided for row in expected] == [False, True, True] * 3


# --- who says it -----------------------------------------------------------------------------


def test_the_model_writes_about_what_has_nothing_personal_in_it(guided, group, bank):
    def answer(text, prompt):
        if prompt.adapter == "base" and prompt.session is None:
            return "ask for the ZIP code <|tool|>"
        return playing(SEARCH, FORM, written(phone_call(BILLING, {"account_number": "123456"})), "")(text, prompt)

    rows, engine = group(guided(source="both"), answer)
    (asked,) = (p for p in engine.prompts if p.session is None)
    read = bank.decode(asked.tokens)
    assert "@account_number" in read and "123456" not in read and "22222" not in read
    assert read.endswith(f"<|note|>{SOURCE}: ") and asked.temperature == 0 and asked.max_new == 100
    *rules, model = told(rows[1], bank)
    assert model == f"{SOURCE}: ask for the ZIP code" and len(rules) == 1 and "Gave account number." in rules[0]
    rows, _ = group(guided(source="model"), answer)
    assert told(rows[1], bank) == [model]


def test_the_world_model_says_what_it_would_have_answered(group, bank):
    settings = config({"coupling": "imagine"}, source="imagined")
    coupling = Guided(settings, bank, Imagine(settings.world_model, bank))
    (_, again, _), _ = group(coupling, playing(SEARCH, FORM, CALL, ""))
    assert told(again, bank) == [f"{SOURCE}: Gave nothing. Billing. I need your account number."]
    assert notes_of(again, bank) == [f"world model: {REPLY}"]


def test_a_reply_that_repeats_what_was_given_gives_nothing_away(guided, group, bank):
    """As a world model might: its words are told as they are, but not with a value in them that the user gave."""
    looked, asked, called, *_ = group(guided(), playing(SEARCH, FORM, PAID))[0][0].turns
    value = next(iter(json.loads(asked.observation).values()))
    for echo, told_of in ((f"I need your {value}.", 0), ("I need your email address.", 1)):
        reply = json.dumps({"status": "auth_failed", "message": f"Billing. {echo}"})
        answered = dataclasses.replace(called, observation=reply, status="auth_failed")
        assert len(bank.env.knowledge.feedback([looked, asked, answered])) == told_of


@pytest.mark.parametrize("predict", ["phone", "phone+form", "all"])
def test_nor_does_a_world_model_that_repeats_it(group, bank, predict):
    """What it said of the same call in the same attempt, with a value that the user gave, and with none; also where it
    learns what users answer, which it is not asked for here."""
    settings = config({"coupling": "imagine", "predict": predict}, source="imagined")
    coupling = Guided(settings, bank, Imagine(settings.world_model, bank))
    for asked, told_of in (
        ("123456", []),
        ("account number", [f"{SOURCE}: Gave account number. I need your account number."]),
    ):
        reply = json.dumps({"status": "auth_failed", "message": f"I need your {asked}."})
        called = written(phone_call(BILLING, {"account_number": "123456"}))
        (first, again, _), _ = group(coupling, playing(SEARCH, FORM, called, "", reply=reply))
        assert "123456" in first.turns[1].observation and told(again, bank) == told_of


def test_the_control_tells_of_other_tasks(guided, group, bank, tiny, attempt):
    coupling = guided(source="shuffled")

    def heard(task_id: str, message: str, status="auth_failed") -> Example:
        reply = json.dumps({"status": status, "message": message})
        return Example(task_id, phone_call(BILLING), reply, status, Encoded((len(message),), (2,)), "", ())

    rows, _ = group(coupling, playing(SEARCH, FORM, CALL, ""))
    assert [told(row, bank) for row in rows] == [[]] * 3, "nothing was heard yet"
    coupling.hear([heard("bill", "Mine."), heard("loan", "Theirs."), heard("fraud", "Served.", "success")] * 2)
    rows, _ = group(coupling, playing(SEARCH, FORM, CALL, ""))
    assert [told(row, bank) for row in rows] == [[], *[[f"{SOURCE}: Gave nothing. Theirs."]] * 2]
    failed = [dataclasses.replace(rows[0], position=k) for k in (1, 2, 3)]
    coupling.hear([heard("loan", text) for text in ("Three.", "Four.")])
    row = Row(attempt("bill"), 0, 0, bank, None)
    row.earlier = failed
    for how, attempts in (("all", [1, 2, 3]), ("last", [3])):
        coupling.feedback = dataclasses.replace(coupling.feedback, accumulate=how)
        with pytest.raises(StopIteration) as end:
            next(coupling.lessons(row))
        assert [one.attempt for one in end.value.value] == attempts, "one for each that failed"


def test_the_other_control_tells_nothing(guided, group, bank):
    """The teacher tries again, and what it does right is learned as ever."""
    rows, _ = group(guided(source="none", teacher="base"), playing(SEARCH, FORM, CALL, ""))
    assert [told(row, bank) for row in rows] == [[]] * 3
    assert [row.actor for row in rows] == ["policy", "base", "base"]
    rows, _ = group(guided(source="none", teacher="base"), playing(SEARCH, FORM, PAID))
    assert [row.actor for row in rows] == ["policy"] * 3, "nobody failed"
    with pytest.raises(ValueError, match="teacher to 'base'"):
        FeedbackConfig(source="none", teacher="live")


# --- around any other coupling ---------------------------------------------------------------


@pytest.mark.parametrize("name", [None, *(c for c in COUPLINGS if c != "cloning")])
def test_it_stands_around_any_other_coupling(toy_path, env, name):
    settings = dataclasses.replace(config({"coupling": name} if name else None), model=ModelConfig(base=str(toy_path)))
    codec, inner = make_coupling(dataclasses.replace(settings, feedback=None), env)
    found, outer = make_coupling(settings, env)
    assert type(outer) is Guided and type(outer.inner) is type(inner) and outer.layout == inner.layout
    assert (outer.rewarded, outer.predicts, found.in_passing) == (inner.rewarded, inner.predicts, codec.in_passing)
    assert bool(outer.recall) is bool(inner.recall) is (name == "memory")
    for said in ("before_step", "examples", "practice", "responder"):  # it has no say in these
        assert getattr(outer, said).__func__ is getattr(inner, said).__func__
    assert type(alone(outer)) is Plain and alone(outer).layout == inner.layout
    assert len(outer.waves(env.tasks("train")[0], 0, 0, 8)) == 2
    assert outer.practice(10**6, 100) == [] if name != "dream" else len(outer.practice(1, 100)) == 8


def test_the_inner_notes_come_first_and_nothing_is_imagined_again(group, bank):
    settings = config({"coupling": "imagine"}, teacher="base")
    coupling = Guided(settings, bank, Imagine(settings.world_model, bank))
    rows, engine = group(coupling, playing(SEARCH, FORM, CALL, ""), 4)
    kinds = [role for _, role in spans(rows[1], bank) if role in (Role.NOTE, Role.FEEDBACK)]
    assert kinds == [Role.NOTE, Role.FEEDBACK] and [len(notes_of(row, bank)) for row in rows] == [1] * 4
    assert sum(p.adapter == "world_model" for p in engine.prompts) == 1
    assert all(row.examples for row in rows), "what is heard with feedback teaches the world model, too"


def test_an_environment_without_knowledge_is_refused(toy_path):
    settings = dataclasses.replace(config(), model=ModelConfig(base=str(toy_path)))
    with pytest.raises(ConfigError, match="says nothing that feedback is made of; leave feedback out"):
        make_coupling(settings, Counting())
    assert isinstance(make_coupling(settings, Guessing())[1], Guided)


# --- what is learned -------------------------------------------------------------------------


@pytest.fixture
def three(guided, group):
    """A first attempt that failed, and two with feedback: one that failed, one that was corrected."""
    ways = (SEARCH, FORM, CALL, ""), (SEARCH, FORM, CALL, ""), (SEARCH, FORM, PAID)
    return group(guided(), by_session(*ways))[0]


def sampled(row) -> Sample:
    return Sample(row.tokens, row.roles, row.logprobs, [0.5 if r == Role.ACTION else 0.0 for r in row.roles])


@pytest.mark.parametrize("learn", ["sampled", "free", "capped", "successes", "kl"])
def test_where_the_update_happens(guided, three, bank, learn):
    coupling = guided(learn=learn)
    first, failed, corrected = ([*coupling.views(row, sampled(row))] for row in three)
    assert first[0] == sampled(three[0]), "first attempts are learned from as usual"
    if learn == "sampled":
        assert failed == [sampled(three[1])] and corrected == [sampled(three[2])]
    elif learn == "kl":
        assert failed == corrected == [] and len(first) == 2
    elif learn == "successes":
        assert failed == [] and [(s.how, s.weight) for s in corrected] == [("imitated", 1.0)]
    else:
        assert [s.how for s in failed + corrected] == [learn] * 2
    for row, views in zip(three[1:], (failed, corrected), strict=True):
        for view in views if learn != "sampled" else ():
            bare = [i for i, role in zip(row.tokens, row.roles, strict=True) if role != Role.FEEDBACK]
            assert view.tokens == bare and Role.FEEDBACK not in view.roles
            assert acts(view.tokens, view.old_logprobs, view.roles) == acts(row.tokens, row.logprobs, row.roles)
            assert view.advantages == [0.5 if role == Role.ACTION else 0.0 for role in view.roles]


def test_without_feedback_it_is_the_very_context_of_a_first_attempt(guided, three, group):
    """Token by token what a policy reads that plays so without being told."""
    (alone_,), _ = group(guided(), playing(SEARCH, FORM, PAID), 1)
    (view,) = guided().views(three[2], sampled(three[2]))
    assert view.tokens == alone_.tokens and view.roles == alone_.roles


def test_the_inner_notes_stay_where_the_feedback_goes(group, bank):
    settings = config({"coupling": "imagine"})
    coupling = Guided(settings, bank, Imagine(settings.world_model, bank))
    rows, _ = group(coupling, by_session((SEARCH, FORM, CALL, ""), (SEARCH, FORM, PAID)), 2)
    (view,) = coupling.views(rows[1], sampled(rows[1]))
    assert Role.NOTE in view.roles and Role.FEEDBACK not in view.roles


def test_a_teacher_reads_what_a_later_attempt_would_have_read(guided, three, bank):
    """The failed attempt with the feedback on itself, at the place where a wave after it reads it."""
    _, view = guided(learn="kl", start=9).views(three[0], sampled(three[0]))
    assert (view.tokens, view.roles) == (three[0].tokens, three[0].roles) and set(view.advantages) == {0.0}
    assert (view.taught.tokens, view.taught.roles) == (three[1].tokens, three[1].roles)
    assert guided(learn="kl").views(three[0], None)[0].taught == view.taught, "also where its group taught nothing"


def test_what_a_teacher_reads_is_gathered_as_for_a_later_attempt(guided, group, bank):
    """Two calls to one callee: a summary tells what was said last, as `lessons` would."""
    called = written(phone_call(BILLING, {"account_number": "123456"}))
    rows, _ = group(guided(), by_session((SEARCH, FORM, CALL, called, ""), (SEARCH, FORM, PAID)), 2)
    counts = {}
    for how in ("all", "summary"):
        _, view = guided(learn="kl", accumulate=how).views(rows[0], sampled(rows[0]))
        counts[how] = bank.decode(view.taught.tokens).count(f"<|note|>{SOURCE}: ")
    assert counts == {"all": 2, "summary": 1}
    tight = guided(learn="kl")
    tight.config = dataclasses.replace(tight.config, rollout=dataclasses.replace(tight.config.rollout, max_tokens=1))
    assert len(tight.views(rows[0], sampled(rows[0]))) == 1, (
        "where a later attempt had read nothing there is no teacher"
    )


def test_groups_without_feedback_have_no_teacher(guided, three):
    assert [len(guided(learn="kl", share=share).views(three[0], sampled(three[0]))) for share in (1, 0)] == [2, 1]
    dreamt = dataclasses.replace(three[0], group=-1)
    assert len(guided(learn="kl").views(dreamt, sampled(dreamt))) == 1, "what was dreamt is no feedback"


def test_replies_that_are_learned_in_passing_stay_where_they_were_heard(three, bank):
    echo = Echo(SHARED, ("make_phone_call",))
    coupling = Guided(config({"coupling": "echo"}, learn="free"), bank, echo)
    listened, view = coupling.views(three[2], sampled(three[2]))
    assert listened.tokens == three[2].tokens and any(listened.heard) and listened.advantages is None
    assert view.heard is None and view.how == "free" and Role.FEEDBACK not in view.roles


def test_corrected_attempts_are_kept_without_their_feedback(guided, three):
    (kept,) = guided(updates=1).corrected(three)
    assert kept.tokens == [i for i, role in zip(three[2].tokens, three[2].roles, strict=True) if role != Role.FEEDBACK]
    assert len(kept.tokens) == len(kept.roles) == len(kept.logprobs) and Role.FEEDBACK not in kept.roles
    assert guided().corrected(three) == [], "nobody learns them again"


def test_a_disguise_rewrites_stretches_and_keeps_their_roles(bank, three):
    row = three[0]
    assert bank.rewritten(row.tokens, row.roles, lambda text: text) == (row.tokens, row.roles)
    tokens, roles = bank.rewritten(row.tokens, row.roles, lambda text: text.replace("Harbor", "Summit Trust"))
    text = bank.decode(tokens)
    assert text == bank.decode(row.tokens).replace("Harbor", "Summit Trust") and len(tokens) == len(roles)
    shortened = [role for i, role in enumerate(roles) if i == 0 or roles[i - 1] != role]
    assert shortened == [int(role) for _, role in spans(row, bank)]


# --- what is logged, and another attempt -----------------------------------------------------


def test_metrics_by_hand(guided, three, bank):
    found = guided().metrics(three)
    tokens = sum(role == Role.FEEDBACK for row in three for role in row.roles)
    assert found == {
        "first_try_success": 0.0,
        "feedback_success": 0.5,
        "feedback_unread": 0.0,
        "tokens_of_the_longest": max(len(row.tokens) for row in three),
        **{"success_at_1": 0.0, "success_at_2": 0.0, "success_at_3": 1.0},
        "recovery": 1.0,
        "feedback_tokens_per_rollout": tokens / 3,
        "failed_missing_auth": 1.0,
    }
    assert guided().metrics(three[2:])["feedback_tokens_per_rollout"] > 0
    cut = dataclasses.replace(three[1], roles=[int(Role.ACTION)] * len(three[1].roles))
    assert cut.guided and guided().metrics([*three, cut])["feedback_unread"] == 1 / 3


def test_who_had_nothing_to_read_in_the_end_is_no_first_try(guided, three):
    """Of the second place on, whether somebody reads depends on how the first ended."""
    free = dataclasses.replace(three[2], actor="policy", roles=[int(Role.ACTION)] * len(three[2].roles))
    assert free.success and not free.guided
    assert guided(start=2).metrics([three[0], free])["first_try_success"] == 0.0


def test_who_tries_again_after_training_with_feedback_reads_the_inner_notes_too(scripted, bank, attempt):
    settings = config({"coupling": "imagine"}, teacher="base")
    trained = Guided(settings, bank, Imagine(settings.world_model, bank))
    earlier: dict = {}
    retry = Retry(trained.inner, earlier, notes=True)
    (first,), _ = scripted(retry, playing(SEARCH, FORM, CALL, ""), [attempt("bill")])
    earlier["bill"] = [first]
    (again,), engine = scripted(retry, playing(SEARCH, FORM, CALL, ""), [attempt("bill")])
    kinds = [role for _, role in spans(again, bank) if role in (Role.NOTE, Role.FEEDBACK)]
    assert kinds == [Role.NOTE, Role.FEEDBACK] and told(first, bank) == []
    assert {p.adapter for p in engine.prompts if p.session is not None} == {"policy"}, "the policy tries, no teacher"


def test_whoever_tries_again_reads_all_that_it_was_told(bank, attempt, guided, scripted):
    """However it was trained: in training feedback is cut to half of the room that is left."""
    earlier: dict = {}
    for notes in (False, True):
        retry = Retry(guided(teacher="base").inner, earlier, notes=notes)
        if not earlier:
            (first,), _ = scripted(retry, playing(SEARCH, FORM, CALL, ""), [attempt("bill")])
            earlier["bill"] = [first] * 30
        (again,), _ = scripted(retry, playing(SEARCH, FORM, CALL, ""), [attempt("bill")])
        assert len(told(again, bank)) == 30


def test_a_toy_is_told_what_was_wrong(toy_path):
    """Nothing here knows of phones: the second attempt reads which number it was not."""
    settings = dataclasses.replace(config(teacher="live"), model=ModelConfig(base=str(toy_path)))
    codec, coupling = make_coupling(settings, Guessing())

    def say(text, prompt):
        return written(Call("count", {"number": "3" if "Not 1" in text else "1"}))

    task = Guessing().tasks("train")[2]
    rows = play(Scripted(codec, say), codec, [coupling.waves(task, 0, 0, 2)], coupling, settings.rollout, 0)
    assert [row.success for row in rows] == [False, True]
