"""rollout: what the engine samples is what a plain forward pass says; what the loop writes is what happened."""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel

from lfo.base import load_base
from lfo.config import EnvConfig, ModelConfig, RolloutConfig, WorldModelConfig
from lfo.records import StopReason
from lfo.rollout import Completion, Job, Prompt, TorchEngine, UnknownAdapter, kv_cache, play
from lfo.sampling import empty_handed_call
from lfo.simulator import PHRASINGS
from lfo.tokens import CHAT_IMAGINED, Role, load_codec, segments
from lfo.tools import format_call
from lfo.world import FIELDS

NO_STOP = -1  # a token that is never sampled
SEARCH = format_call("search_company", {"company_name": "Harbor Bank"})
WRONG_SEARCH = format_call("search_company", {"company_name": "Nobody Knows"})


@pytest.fixture(scope="module", params=[None, 3], ids=["whole", "chunked"])
def engine(request, toy_path, toy_adapters) -> TorchEngine:
    engine = TorchEngine(toy_path, chunk=request.param)
    engine.load(toy_adapters)
    return engine


@pytest.fixture(scope="module")
def plain(toy_path, toy_adapters):
    """plain(adapter, tokens): log-probabilities (T, V) of what follows each token, from one forward pass.

    Neither a cache nor merged weights: peft computes the adapter beside the base.
    """
    models = {"base": load_base(toy_path).eval()}
    for name, folder in toy_adapters.items():
        models[name] = PeftModel.from_pretrained(load_base(toy_path), str(folder)).eval()

    @torch.no_grad()
    def forward(adapter: str, tokens: list[int], temperature: float = 1.0) -> torch.Tensor:
        return torch.log_softmax(models[adapter](torch.tensor([tokens])).logits[0] / temperature, dim=-1)

    return forward


def agree(plain, prompt: Prompt, completion: Completion) -> bool:
    """Whether the completion's log-probs are those of a plain forward pass over prompt and completion."""
    whole = [*prompt.tokens, *completion.tokens]
    start, temperature = len(prompt.tokens), prompt.temperature or 1.0
    expected = plain(prompt.adapter, whole, temperature)[torch.arange(start - 1, len(whole) - 1), completion.tokens]
    return torch.allclose(torch.tensor(completion.logprobs), expected, atol=1e-4)


# --- the engine ------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_a_session_gives_what_a_full_forward_gives(engine, plain, temperature, monkeypatch):
    """Rows of different lengths grow by different amounts over four turns, stop apart, leave and change places."""
    monkeypatch.setattr(kv_cache, "ROOM", 2)  # used up all the time
    rng = random.Random(0)
    engine.end_sessions()
    contexts = {key: [rng.randrange(1000) for _ in range(2 + 5 * key)] for key in range(5)}
    for turn, keys in enumerate(([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [3, 1, 4], [4, 3])):
        stops = {key: rng.randrange(1000) for key in keys}
        prompts = [Prompt(list(contexts[k]), "policy", 3 + k, stops[k], temperature, session=k) for k in keys]
        for key, prompt, completion in zip(keys, prompts, engine.generate(prompts, turn), strict=True):
            assert agree(plain, prompt, completion)
            contexts[key] += completion.tokens + [rng.randrange(1000) for _ in range(1 + 4 * key % 7)]
    assert len({len(c) for c in contexts.values()}) == 5


def test_one_offs_of_all_adapters_come_back_in_order(engine, plain):
    rng = random.Random(1)
    names = ["world_model", "base", "policy", "world_model", "policy"]
    prompts = [
        Prompt([rng.randrange(1000) for _ in range(3 + 4 * i)], name, 6, NO_STOP, 1.0, session=i if i == 2 else None)
        for i, name in enumerate(names)
    ]
    engine.end_sessions()
    completions = engine.generate(prompts, 0)
    assert all(agree(plain, p, c) for p, c in zip(prompts, completions, strict=True))
    other = Prompt(prompts[0].tokens, "policy", 6, NO_STOP, 1.0)
    assert not agree(plain, other, completions[0])  # the check can tell adapters apart


def test_greedy_is_the_naive_arg_max(engine, plain):
    prompts = [Prompt([5, 6, 7], "policy", 8, NO_STOP, 0.0), Prompt([9], "world_model", 8, NO_STOP, 0.0)]
    for prompt, completion in zip(prompts, engine.generate(prompts, 0), strict=True):
        tokens = list(prompt.tokens)
        for _ in range(8):
            tokens.append(int(plain(prompt.adapter, tokens)[-1].argmax()))
        assert completion.tokens == tokens[len(prompt.tokens) :]
    assert engine.generate(prompts, 1) == engine.generate(prompts, 2)  # whatever the seed


def test_same_seed_same_completions(engine):
    prompts = [Prompt([5, 6, i], "policy", 12, NO_STOP, 1.0) for i in range(4)]
    assert engine.generate(prompts, 7) == engine.generate(prompts, 7)
    assert engine.generate(prompts, 7) != engine.generate(prompts, 8)


@pytest.fixture(scope="module")
def streaming(toy_path, toy_adapters) -> TorchEngine:
    """An engine in which every row samples from a random stream of its own."""
    engine = TorchEngine(toy_path, row_streams=True)
    engine.load(toy_adapters)
    return engine


def test_a_row_stream_does_not_mind_the_other_rows(streaming):
    """Rows are named by their sessions: each samples the same among all, among some, and alone."""
    prompts = [Prompt([5, 6, i], "policy", 6 + i, NO_STOP, 1.0, session=i) for i in range(4)]
    results = []
    for parts in ([prompts], [prompts[2:], prompts[:2]], [[p] for p in prompts]):
        completions = {}
        for part in parts:
            streaming.end_sessions()
            completions |= zip((p.session for p in part), streaming.generate(part, 7), strict=True)
        results.append([completions[i].tokens for i in range(4)])
    assert results[0] == results[1] == results[2]
    streaming.end_sessions()
    other = [c.tokens for c in streaming.generate(prompts, 8)]
    assert all(a != b for a, b in zip(results[0], other, strict=True))


def test_one_offs_have_row_streams_by_what_they_ask(streaming):
    """The same question twice is two samples; which other questions are asked, and where it stands, is no matter."""
    once, other = (Prompt([5, 6, i], "policy", 12, NO_STOP, 1.0) for i in range(2))
    first, second, third = (c.tokens for c in streaming.generate([once, other, once], 7))
    assert first != third
    assert [c.tokens for c in streaming.generate([other, once], 7)] == [second, first]


def test_row_streams_follow_the_tempered_distribution(streaming, plain):
    test_samples_follow_the_tempered_distribution(streaming, plain)


def test_row_streams_agree_with_a_full_forward(streaming, plain):
    prompts = [Prompt([5, 6, i], "policy", 6, NO_STOP, temperature) for i, temperature in enumerate((1.0, 0.6, 0.0))]
    streaming.end_sessions()
    completions = streaming.generate(prompts, 3)
    assert all(agree(plain, p, c) for p, c in zip(prompts, completions, strict=True))
    assert completions[2].tokens == streaming.generate(prompts[2:], 4)[0].tokens


def test_samples_follow_the_tempered_distribution(engine, plain):
    """4,000 first tokens at temperature 0.5: every frequency within 4.5 standard errors of its probability."""
    prompts = [Prompt([5, 6], "policy", 1, NO_STOP, 0.5)] * 4000
    counts = torch.bincount(torch.tensor([c.tokens[0] for c in engine.generate(prompts, 0)]), minlength=2)
    p = plain("policy", [5, 6], 0.5)[-1].exp()
    counts = torch.nn.functional.pad(counts, (0, len(p) - len(counts))) / 4000
    common = p > 0.002
    assert common.sum() >= 5
    assert ((counts - p).abs()[common] < 4.5 * (p * (1 - p) / 4000).sqrt()[common]).all()


def test_samples_from_one_context_are_samples_of_their_own(engine, plain):
    """Contexts of different lengths, some asked for several times and not side by side: read once, then apart."""
    contexts = [[5, 6, 7], [9] * 8, [5, 6, 7], [3, 4], [9] * 8, [5, 6, 7]]
    prompts = [Prompt(list(c), "policy", 6 + i, NO_STOP, 1.0) for i, c in enumerate(contexts)]
    completions = engine.generate(prompts, 0)
    assert [len(c.tokens) for c in completions] == [6, 7, 8, 9, 10, 11]
    assert all(agree(plain, p, c) for p, c in zip(prompts, completions, strict=True))
    assert len({tuple(c.tokens[:6]) for c in completions}) == 6


def test_sessions_that_begin_alike_read_it_once(engine, plain, monkeypatch):
    """A group's rows share their prompt: it goes through the model once; from then on they are rows of their own."""
    fed = []
    forward = TorchEngine._forward
    monkeypatch.setattr(
        TorchEngine, "_forward", lambda self, m, s, ids, real: fed.append(ids) or forward(self, m, s, ids, real)
    )
    engine.end_sessions()
    contexts = {k: [5, 6, 7] if k < 3 else [8, 9] for k in range(5)}
    for turn in range(2):
        prompts = [Prompt(list(c), "policy", 2 + k, NO_STOP, 1.0, session=k) for k, c in contexts.items()]
        completions = engine.generate(prompts, turn)
        assert all(agree(plain, p, c) for p, c in zip(prompts, completions, strict=True))
        contexts = {k: [*c, *said.tokens, 3] for (k, c), said in zip(contexts.items(), completions, strict=True)}
    assert fed[0].tolist() == [[5, 6, 7], [8, 9, 0]]
    assert len({tuple(c) for c in contexts.values()}) == 5


def test_rows_that_have_stopped_are_set_aside(engine, monkeypatch):
    """The longest of four actions is decoded alone at its end."""
    sizes = []
    step = TorchEngine._step
    monkeypatch.setattr(
        TorchEngine, "_step", lambda self, m, s, ids, on: sizes.append(len(ids)) or step(self, m, s, ids, on)
    )
    engine.generate([Prompt([5, 6], "policy", n, NO_STOP, 1.0) for n in (1, 3, 3, 5)], 0)
    assert sizes == [3, 3, 1, 1]


def test_a_stop_token_ends_its_row_and_is_kept(engine):
    prompt = Prompt([5, 6, 7], "policy", 10, NO_STOP, 0.0)
    free = engine.generate([prompt], 0)[0].tokens
    stop = free[4]
    stopping = Prompt(prompt.tokens, "policy", 10, stop, 0.0)
    stopped, unstopped, short = engine.generate([stopping, prompt, Prompt([5, 6, 7], "policy", 2, stop, 0.0)], 0)
    assert stopped.tokens == free[: free.index(stop) + 1]
    assert (unstopped.tokens, short.tokens) == (free, free[:2])
    assert all(len(c.tokens) == len(c.logprobs) for c in (stopped, unstopped, short))


def test_generated_tokens_are_counted(engine):
    before = engine.generated_tokens
    engine.generate([Prompt([5], "policy", n, NO_STOP, 1.0) for n in (1, 4)], 0)
    assert engine.generated_tokens == before + 5
    assert engine.generate([], 0) == []


def test_a_session_ends_with_its_weights_and_on_request(toy_path, toy_adapters, plain):
    """Stale keys would show: the second prompt shares its session but not its tokens, or not its weights."""
    engine = TorchEngine(toy_path)
    engine.load({"policy": toy_adapters["world_model"]})
    engine.generate([Prompt([5, 6, 7, 8], "policy", 4, NO_STOP, 1.0, session=0)], 0)
    engine.load({"policy": toy_adapters["policy"]})
    prompt = Prompt([5, 6, 7, 8, 9], "policy", 4, NO_STOP, 1.0, session=0)
    assert agree(plain, prompt, engine.generate([prompt], 0)[0])
    engine.end_sessions()
    prompt = Prompt([1, 2, 3, 4, 9, 9, 9, 9, 9, 9], "policy", 4, NO_STOP, 1.0, session=0)
    assert agree(plain, prompt, engine.generate([prompt], 0)[0])
    prompts = [Prompt([k + 1], "policy", 4, NO_STOP, 1.0, session=k) for k in (0, 77)]  # 77 is new: a new batch
    assert all(agree(plain, p, c) for p, c in zip(prompts, engine.generate(prompts, 0), strict=True))


def test_merging_happens_on_a_copy(toy_path, toy_adapters):
    """After many loads the pristine weights are bit for bit those of the file, and so is what is merged."""
    engine = TorchEngine(toy_path)
    prompt = Prompt([5, 6, 7], "policy", 6, NO_STOP, 1.0)
    engine.load(toy_adapters)
    first = engine.generate([prompt], 0)
    for _ in range(20):
        engine.load(toy_adapters)
    assert engine.generate([prompt], 0) == first
    pristine = load_base(toy_path).state_dict()
    held = engine._pristine.state_dict()
    assert held.keys() == pristine.keys() and all(torch.equal(held[k], pristine[k]) for k in pristine)


def test_errors_name_what_is_missing(toy_path, toy_adapters, tmp_path):
    engine = TorchEngine(toy_path)
    engine.load({"policy": toy_adapters["policy"]})
    with pytest.raises(UnknownAdapter) as error:
        engine.generate([Prompt([1], "wold_model", 1, NO_STOP, 1.0)], 0)
    assert str(error.value) == "no adapter 'wold_model' is loaded; loaded: base, policy."
    with pytest.raises(FileNotFoundError, match=r"holds no peft adapter \(adapter_config.json is missing\)"):
        engine.load({"policy": tmp_path})
    with pytest.raises(FileNotFoundError, match=r"no base model in .*make base"):
        TorchEngine(tmp_path / "nowhere")


# --- the loop, with a scripted engine --------------------------------------------------------


class Scripted:
    """An engine whose answers are written out: `answer(prompt text, adapter)` is a text or None for no closing tag."""

    def __init__(self, codec, answer):
        self.codec, self.answer, self.prompts, self.seeds, self.ended = codec, answer, [], [], 0

    def load(self, adapters: dict[str, Path]) -> None:
        raise AssertionError("the loop loads nothing")

    def generate(self, prompts: list[Prompt], seed: int) -> list[Completion]:
        self.prompts += [dataclasses.replace(p, tokens=list(p.tokens)) for p in prompts]  # the rows go on growing
        self.seeds.append(seed)
        out = []
        for prompt in prompts:
            text = self.answer(self.codec.decode(prompt.tokens), prompt.adapter)
            ids = [*self.codec.encode(text), prompt.stop][: prompt.max_new]
            out.append(Completion(ids, [-0.25] * len(ids)))
        return out

    def end_sessions(self) -> None:
        self.ended += 1


def turns_so_far(text: str) -> int:
    return text.count("<|obs|>")


@pytest.fixture
def job(tiny):
    """job(task_id, group): a rollout in the small world."""

    def make(task_id: str, group: int = 0, seed: int = 0, held_out: bool = False) -> Job:
        return Job(next(t for t in tiny.tasks if t.task_id == task_id), group, seed, held_out)

    return make


@pytest.fixture
def scripted(codec, tiny):
    """scripted(answer, jobs, ...): (trajectories, the engine that was asked)."""

    def run(answer, jobs, imagine=False, env=None, **rollout):
        engine = Scripted(codec, answer)
        return play(engine, codec, tiny, jobs, env or EnvConfig(), RolloutConfig(**rollout), 5, imagine=imagine), engine

    return run


def by_turn(*actions: str):
    """The n-th action on turn n, the last one for ever."""
    return lambda text, adapter: actions[min(turns_so_far(text), len(actions) - 1)]


OFFER = [SEARCH, format_call("make_phone_call", {"phone_number": "800-555-0005", "auth_info": {}})]


def test_a_trajectory_by_hand(scripted, codec, job):
    (row,), engine = scripted(by_turn(*OFFER), [job("offer", group=3)])
    assert (row.task_id, row.group, row.stop, row.success, row.reward) == ("offer", 3, StopReason.SUCCESS, True, 1.0)
    segments = [
        (f"<|task|>{engine_request(row, codec)}<|/task|><|tool|>", Role.PROMPT),
        (f"{SEARCH}<|end|>", Role.ACTION),
        (f"<|obs|>{row.turns[0].observation}<|/obs|><|tool|>", Role.OBSERVATION),
        (f"{OFFER[1]}<|end|>", Role.ACTION),
        (f"<|obs|>{row.turns[1].observation}<|/obs|>", Role.OBSERVATION),  # the end: no further action is opened
    ]
    assert spans(row, codec) == segments
    assert row.logprobs == [-0.25 if role == Role.ACTION else 0.0 for role in row.roles]
    assert [codec.decode(c.reply) for c in row.calls] == [row.turns[1].observation + "<|/csr|>"]
    assert (len(engine.seeds), len(set(engine.seeds)), engine.ended) == (2, 2, 1)


def spans(row, codec) -> list[tuple[str, Role]]:
    """The trajectory as text, cut where the role changes."""
    return [(text, role) for role, text, _ in segments(codec, row)]


def engine_request(row, codec) -> str:
    return re.search(r"<\|task\|>(.*)<\|/task\|>", codec.decode(row.tokens))[1]


def test_trajectories_come_in_the_order_of_the_jobs(scripted, codec, job):
    """Rows end on different turns: hanging up at once, after a search, or by success."""

    def answer(text, adapter):
        wants = {"a charge": [""], "hear about offers": OFFER, "a fraud": [SEARCH, ""]}
        return by_turn(*next(v for k, v in wants.items() if k in text))(text, adapter)

    names = ["offer", "bill", "fraud", "bill", "offer"]
    rows, engine = scripted(answer, [job(name, group=i) for i, name in enumerate(names)])
    assert [(r.task_id, r.group) for r in rows] == list(zip(names, range(5), strict=True))
    assert [len(r.turns) for r in rows] == [2, 1, 2, 1, 2]
    assert [r.stop == StopReason.SUCCESS for r in rows] == [name == "offer" for name in names]
    assert [p.session for p in engine.prompts] == [0, 1, 2, 3, 4, 0, 2, 4]  # a row keeps its session


def test_what_the_sampler_is_asked(scripted, codec, job):
    _, engine = scripted(by_turn(*OFFER), [job("offer")], temperature=0.7, max_action_tokens=50)
    assert all(p.tokens[-1] == codec.opener[0] for p in engine.prompts)
    assert {(p.adapter, p.max_new, p.stop, p.temperature) for p in engine.prompts} == {
        ("policy", 50, codec.end_id, 0.7)
    }


@pytest.mark.parametrize(
    ("actions", "stop", "turns"),
    [
        ([SEARCH], StopReason.MAX_TURNS, 16),
        ([""], StopReason.AGENT_STOPPED, 1),
        (["nonsense"], StopReason.MALFORMED, 3),
        ([SEARCH, ""], StopReason.AGENT_STOPPED, 2),
    ],
)
def test_every_episode_ends(scripted, job, actions, stop, turns):
    (row,), _ = scripted(by_turn(*actions), [job("bill")], max_tokens=100_000)
    assert (row.stop, len(row.turns), row.success) == (stop, turns, False)


def test_an_action_without_end_is_cut_and_does_not_parse(scripted, codec, job):
    (row,), _ = scripted(by_turn(SEARCH), [job("bill")], max_action_tokens=3)
    assert row.stop is StopReason.MALFORMED and [t.tool for t in row.turns] == [""] * 3
    assert sum(role == Role.ACTION for role in row.roles) == 9


def test_the_token_budget_ends_an_episode(scripted, codec, job):
    (free,), _ = scripted(by_turn(SEARCH), [job("bill")], max_tokens=100_000)
    budget = free.roles.index(Role.OBSERVATION) + 1  # passed by the first observation
    (row,), _ = scripted(by_turn(SEARCH), [job("bill")], max_tokens=budget)
    assert (row.stop, len(row.turns), row.success) == (StopReason.TOKEN_BUDGET, 1, False)
    assert row.stop.truncated and len(row.tokens) >= budget


def test_success_on_the_last_token_is_success(scripted, job):
    (row,), _ = scripted(by_turn(*OFFER), [job("offer")])
    (again,), _ = scripted(by_turn(*OFFER), [job("offer")], max_tokens=len(row.tokens))
    assert (again.stop, again.success) == (StopReason.SUCCESS, True)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_no_engine_can_keep_an_episode_open(codec, tiny, data):
    """The contract: whatever ids come, every row has a stop reason, aligned lists, and at most 16 turns."""
    ids = st.integers(0, len(codec.tokenizer) - 1)

    class Monkey(Scripted):
        def generate(self, prompts, seed):
            drawn = [data.draw(st.lists(ids, min_size=1, max_size=4)) for _ in prompts]
            return [Completion(d, [-1.0] * len(d)) for d in drawn]

    jobs = [Job(tiny.tasks[i], i, i) for i in range(2)]
    rows = play(Monkey(codec, None), codec, tiny, jobs, EnvConfig(), RolloutConfig(max_tokens=400), 0)
    for row in rows:
        assert isinstance(row.stop, StopReason) and 1 <= len(row.turns) <= 16
        assert len(row.tokens) == len(row.roles) == len(row.logprobs)


def test_jobs_decide_whose_phrasings_are_heard(scripted, job):
    held_out = {variants[-1] for variants in PHRASINGS["success"].values()}
    for flag in (False, True):
        rows, _ = scripted(by_turn(*OFFER), [job("offer", seed=s, held_out=flag) for s in range(20)])
        messages = {json.loads(r.turns[-1].observation)["message"] for r in rows}
        assert len(messages) > 1
        assert {m in {h.format(dept="Sales") for h in held_out} for m in messages} == {flag}


# --- imagination -----------------------------------------------------------------------------

FORM = format_call("auth_info_form", {"fields": ["account_number", "billing_zip"]})
CALL = format_call("make_phone_call", {"phone_number": "800-555-0003", "auth_info": {}})
REPLY = '{"status": "auth_failed", "message": "Billing. I need your account number."}'


def imagining(*actions: str, number: str = "800-555-0003", reply: str = REPLY):
    """A policy that plays `actions` and means to call `number`, and a world model that says `reply`."""

    def answer(text: str, adapter: str) -> str:
        if adapter == "world_model":
            return reply
        if text.endswith('"phone_number": "'):
            return f'{number}", "auth_info": {{}}}}'
        return by_turn(*actions)(text, adapter)

    return answer


def imagined_of(row, codec) -> list[str]:
    return [text for text, role in spans(row, codec) if role is Role.IMAGINED]


def test_one_imagined_reply_between_directory_and_form(scripted, codec, job):
    (row,), _ = scripted(imagining(SEARCH, FORM, CALL, ""), [job("bill")], imagine=True)
    texts = [text for text, _ in spans(row, codec)]
    where = texts.index(f"<|imagine|>{REPLY}<|/imagine|>")
    assert imagined_of(row, codec) == [texts[where]]
    assert texts[where - 1] == f"<|obs|>{row.turns[0].observation}<|/obs|>"
    assert texts[where + 1 : where + 3] == ["<|tool|>", f"{FORM}<|end|>"]
    assert [t.tool for t in row.turns] == ["search_company", "auth_info_form", "make_phone_call", ""]


def test_what_is_asked_before_imagining(scripted, codec, job):
    """First the policy, greedily, for a number; then the world model for the answer to an empty-handed call."""
    (row,), engine = scripted(imagining(SEARCH, ""), [job("bill")], imagine=True)
    _, intent, question, _ = engine.prompts
    directory = f"<|obs|>{row.turns[0].observation}<|/obs|>"
    assert (intent.adapter, intent.temperature, intent.session) == ("policy", 0.0, None)
    assert codec.decode(intent.tokens).endswith(f'{directory}<|tool|>make_phone_call<|args|>{{"phone_number": "')
    assert (question.adapter, question.temperature, question.stop) == ("world_model", 0.0, codec.csr_end_id)
    request = engine_request(row, codec)
    assert question.tokens == codec.world_prompt(request, row.turns[:1], empty_handed_call("800-555-0003"))
    assert "800-555-0003" in codec.decode(question.tokens)


def test_a_chat_is_played_and_imagined_alike(chat_path, tiny, job):
    """The same loop with the `chat` dialect: calls, observations and the imagined reply as messages."""
    chat = load_codec(ModelConfig(str(chat_path), dialect="chat"))

    def answer(text: str, adapter: str) -> str:
        if adapter == "world_model":
            return REPLY
        if text.endswith('"phone_number": "'):
            return '800-555-0003"'
        turn = text.count("<tool_response>")
        if turn == 3:
            return "Billing wants more than I was given. Goodbye."
        action = (SEARCH, FORM, CALL)[turn]
        call = {"name": action.partition("<|args|>")[0], "arguments": json.loads(action.partition("<|args|>")[2])}
        return f"<tool_call>\n{json.dumps(call)}\n</tool_call>"

    rollout = RolloutConfig(max_action_tokens=400, max_tokens=4000)
    (row,) = play(Scripted(chat, answer), chat, tiny, [job("bill")], EnvConfig(), rollout, 0, imagine=True)
    assert [turn.action for turn in row.turns] == [SEARCH, FORM, CALL, ""]
    assert row.stop is StopReason.AGENT_STOPPED
    *calls, goodbye = [text for text, role in spans(row, chat) if role is Role.ACTION]
    assert all(text.startswith("<tool_call>") and text.endswith("</tool_call><|im_end|>") for text in calls)
    assert goodbye.endswith("Goodbye.<|im_end|>")
    assert imagined_of(row, chat) == [f"<|im_start|>user\n{CHAT_IMAGINED.format(reply=REPLY)}<|im_end|>\n"]
    (example,) = row.calls
    assert chat.reply_text(example.reply) == row.turns[2].observation


def test_rows_without_a_directory_imagine_nothing(scripted, codec, job):
    (row,), engine = scripted(imagining(WRONG_SEARCH, FORM, CALL, ""), [job("bill")], imagine=True)
    assert imagined_of(row, codec) == [] and {p.adapter for p in engine.prompts} == {"policy"}
    (row,), _ = scripted(imagining(WRONG_SEARCH, SEARCH, FORM, ""), [job("bill")], imagine=True)
    assert len(imagined_of(row, codec)) == 1  # as soon as there is one
    texts = [text for text, _ in spans(row, codec)]
    assert SEARCH in texts[texts.index(imagined_of(row, codec)[0]) - 2]


def test_a_number_that_is_not_listed_is_not_imagined(scripted, codec, job):
    (row,), engine = scripted(imagining(SEARCH, SEARCH, "", number="800-555-9999"), [job("bill")], imagine=True)
    assert imagined_of(row, codec) == []
    assert [p.adapter for p in engine.prompts] == ["policy"] * 4  # and it is asked for only once


@pytest.mark.parametrize("imagine", [False, True])
def test_a_probe_makes_the_intended_call_and_ends(scripted, codec, job, imagine):
    probe = dataclasses.replace(job("bill"), probe=True)
    (row, other), engine = scripted(imagining(SEARCH, FORM, CALL, ""), [probe, job("bill")], imagine=imagine)
    assert [t.tool for t in row.turns] == ["search_company", "make_phone_call", ""] and row.probe and not row.success
    assert row.turns[1].action == empty_handed_call(json.loads(CALL.partition("<|args|>")[2])["phone_number"])
    (call,) = row.calls
    assert call.status == "auth_failed" and "account number" in call.reply_text and "billing ZIP" in call.reply_text
    assert Role.IMAGINED not in row.roles
    assert not other.probe and len(other.turns) == 4 and (Role.IMAGINED in other.roles) == imagine
    intentions = [p for p in engine.prompts if p.adapter == "policy" and p.session is None]
    assert len(intentions) == 1  # asked once for the group


def test_a_probe_without_an_intention_asks_nobody(scripted, job):
    probe = dataclasses.replace(job("bill"), probe=True)
    (row,), _ = scripted(imagining(SEARCH, FORM, number="800-555-9999"), [probe])
    assert [t.tool for t in row.turns] == ["search_company", ""] and row.calls == []


def test_a_group_shares_its_imagined_reply(codec, tiny, job):
    """Also the row that reads its directory a turn later than the others; another group has its own."""
    asked = []

    def answer(text: str, adapter: str) -> str:
        if adapter == "world_model":
            asked.append(text)
            return f'{{"status": "auth_failed", "message": "Billing. Reply {len(asked)}."}}'
        if text.endswith('"phone_number": "'):
            return '800-555-0003"'
        return ""

    class Uneven(Scripted):
        def generate(self, prompts, seed):
            out = super().generate(prompts, seed)
            for i, p in enumerate(prompts):
                if p.session is not None:
                    turn = turns_so_far(codec.decode(p.tokens))
                    late = p.session == 1
                    text = [WRONG_SEARCH if late else SEARCH, SEARCH, FORM, ""][turn]
                    ids = [*codec.encode(text), codec.end_id]
                    out[i] = Completion(ids, [-1.0] * len(ids))
            return out

    jobs = [job("bill", group=g) for g in (0, 0, 0, 1)]
    rows = play(Uneven(codec, answer), codec, tiny, jobs, EnvConfig(), RolloutConfig(), 0, imagine=True)
    replies = [imagined_of(row, codec) for row in rows]
    assert all(len(r) == 1 for r in replies)
    assert replies[0] == replies[1] == replies[2] != replies[3]
    assert len(asked) == 2


# --- dreams ----------------------------------------------------------------------------------


YES = '{"status": "success", "message": "Billing. Done."}'
NO = '{"status": "auth_failed", "message": "Billing. I need your account number."}'


@pytest.fixture
def dreamt(codec, tiny, job):
    """dreamt(replies, actions, ...): (trajectory, engine) of a dream whose world model says `replies` in turn."""

    def run(replies, actions=(SEARCH, CALL, ""), task="bill", agreement=1.0, jobs=None):
        said, act = itertools.cycle(replies), by_turn(*actions)
        engine = Scripted(codec, lambda text, adapter: next(said) if adapter == "world_model" else act(text, adapter))
        settings = WorldModelConfig(coupling="dream", dream_samples=4, dream_agreement=agreement)
        rows = play(engine, codec, tiny, jobs or [job(task)], EnvConfig(), RolloutConfig(), 0, dream=settings)
        return rows[0] if jobs is None else rows, engine

    return run


def test_in_a_dream_the_world_model_answers_the_phone(dreamt, codec):
    """The real Billing demands two fields; here it is content with nothing, and the calls teach no world model."""
    row, engine = dreamt([YES])
    assert (row.success, row.reward, row.stop, row.calls) == (True, 1.0, StopReason.SUCCESS, [])
    assert [t.tool for t in row.turns] == ["search_company", "make_phone_call"]
    assert json.loads(row.turns[1].observation) == json.loads(YES)
    asked = [p for p in engine.prompts if p.adapter == "world_model"]
    assert {(p.temperature, p.stop, p.session) for p in asked} == {(1.0, codec.csr_end_id, None)} and len(asked) == 4
    assert asked[0].tokens == codec.world_prompt(engine_request(row, codec), row.turns[:1], CALL)


@pytest.mark.parametrize(
    ("replies", "agreement", "success"),
    [
        ([YES, YES, YES, YES], 1.0, True),
        ([YES, NO, YES, YES], 1.0, False),
        ([YES, NO, YES, YES], 0.75, True),
        ([NO, YES, NO, YES], 0.75, False),
        ([NO], 0.25, False),
        (["Done!"], 1.0, False),  # no reply at all
        (['{"status": "malformed", "message": "m"}'], 0.1, False),
    ],
)
def test_success_needs_agreement_and_the_agent_hears_the_verdict(dreamt, replies, agreement, success):
    row, _ = dreamt(replies, agreement=agreement)
    assert row.success == success
    heard = json.loads(row.turns[1].observation)
    assert (heard["status"] == "success") == success
    assert heard["status"] in ("success", "auth_failed", "unreadable")


@pytest.mark.parametrize("number", ["800-555-0005", "800-555-9999"])
def test_the_success_of_another_department_serves_nobody(dreamt, number):
    """Sales, or a number that nobody has, says it is done; the charge is Billing's."""
    wrong = format_call("make_phone_call", {"phone_number": number, "auth_info": {}})
    row, _ = dreamt([YES], actions=[SEARCH, wrong, ""])
    assert (row.turns[1].status, row.success, row.stop) == ("success", False, StopReason.AGENT_STOPPED)


def test_every_goal_has_to_be_served(dreamt):
    """Disputing a charge is Billing's, closing an account Customer Service's; either order."""
    first = format_call("make_phone_call", {"phone_number": "(800) 555 0001", "auth_info": {}})
    row, _ = dreamt([YES], actions=[SEARCH, first, CALL], task="two")
    assert row.success and [t.status for t in row.turns] == ["ok", "success", "success"]
    assert not dreamt([YES], actions=[SEARCH, first, ""], task="two")[0].success


def test_the_user_of_a_dream_is_real(dreamt, tiny):
    row, _ = dreamt([YES], actions=[SEARCH, FORM, CALL])
    given = json.loads(row.turns[1].observation)
    assert given["account_number"] == tiny.profiles["all"].values["account_number"] and row.success
    greedy = format_call("auth_info_form", {"fields": ["name", "email", "date_of_birth", "account_number"]})
    assert dreamt([YES], actions=[SEARCH, greedy, CALL])[0].turns[1].status == "declined"


def test_calls_are_imagined_together_and_the_same_call_once(dreamt, job):
    """Two rows of one group and one of another task call on the same turn: one request, four replies per question."""
    rows, engine = dreamt([YES], jobs=[job("bill", 0), job("bill", 0), job("offer", 1)])
    assert [r.success for r in rows] == [True, True, False]  # Billing is not who tells about offers
    asked = [p for p in engine.prompts if p.adapter == "world_model"]
    assert len(asked) == 8 and len({tuple(p.tokens) for p in asked}) == 2
    assert len(engine.seeds) == len(set(engine.seeds)) == 4  # three turns, and one request for all calls


# --- the loop, with the embedded base --------------------------------------------------------


@pytest.fixture(scope="module")
def played(base_path, base_adapters, codec, world):
    """Six groups of four sampled with imagination in the world of the experiments, and the engine."""
    engine = TorchEngine(base_path)
    engine.load(base_adapters)
    jobs = [Job(task, g, 100 + g) for g, task in enumerate(world.split("train", (1, 2, 3))[:6]) for _ in range(4)]
    return play(engine, codec, world, jobs, EnvConfig(), RolloutConfig(), 0, imagine=True), jobs, engine


def test_the_base_plays_what_the_records_say(played, codec):
    rows, jobs, _ = played
    assert [(r.task_id, r.group) for r in rows] == [(j.task.task_id, j.group) for j in jobs]
    for row in rows:
        assert len(row.tokens) == len(row.roles) == len(row.logprobs)
        sampled = [role == Role.ACTION for role in row.roles]
        assert all((p < 0.0) <= is_sampled for p, is_sampled in zip(row.logprobs, sampled, strict=True))
        actions = [text for text, role in spans(row, codec) if role is Role.ACTION]
        assert [a.removesuffix("<|end|>") for a in actions] == [t.action for t in row.turns]
        seen = [text for text, role in spans(row, codec) if role is Role.OBSERVATION and text != "<|tool|>"]
        heard = [f"<|obs|>{t.observation}<|/obs|>" for t in row.turns if t.observation]
        assert [s.removesuffix("<|tool|>") for s in seen] == heard
    assert len({len(r.turns) for r in rows}) > 1  # rows were dropped from the cache while others went on


def test_stored_logprobs_are_those_of_the_merged_model(played, base_path):
    rows, _, _ = played
    model = load_base(base_path).eval()  # untrained adapters change nothing
    for row in rows[::5]:
        with torch.no_grad():
            logprobs = torch.log_softmax(model(torch.tensor([row.tokens])).logits[0], dim=-1)
        acted = [t for t, role in enumerate(row.roles) if role == Role.ACTION]
        expected = logprobs[[t - 1 for t in acted], [row.tokens[t] for t in acted]]
        assert torch.allclose(torch.tensor([row.logprobs[t] for t in acted]), expected, atol=1e-4)


def test_each_group_imagines_once_in_its_place(played, codec):
    rows, _, _ = played
    by_group: dict[int, set] = {}
    for row in rows:
        cut = spans(row, codec)
        found = [i for i, (_, role) in enumerate(cut) if role is Role.IMAGINED]
        read = [i for i, (text, _) in enumerate(cut) if text.startswith('<|obs|>{"departments": [{')]
        assert len(found) <= min(1, len(read))
        if read:
            by_group.setdefault(row.group, set()).add(cut[found[0]][0] if found else "")
        if found:
            assert found[0] == read[0] + 1
    assert all(len(texts) == 1 for texts in by_group.values())
    assert len([g for g, texts in by_group.items() if texts != {""}]) >= 4  # the policy named a listed number


def test_same_seed_same_trajectories(played, codec, world):
    rows, jobs, engine = played
    again = play(engine, codec, world, jobs, EnvConfig(), RolloutConfig(), 0, imagine=True)
    assert again == rows
    other = play(engine, codec, world, jobs, EnvConfig(), RolloutConfig(), 1, imagine=True)
    assert [r.tokens for r in other] != [r.tokens for r in rows]
    greedy = [play(engine, codec, world, jobs[::4], EnvConfig(), RolloutConfig(temperature=0.0), s) for s in (0, 1)]
    assert greedy[0] == greedy[1]


def test_hidden_rules_are_heard_on_the_phone_and_nowhere_else(played, codec, world):
    """How a CSR says a field, as in "billing ZIP code", stands in phone replies only."""
    rows, jobs, engine = played
    rows = rows + play(engine, codec, world, jobs, EnvConfig(), RolloutConfig(), 3)  # without imagination
    spoken = re.compile("|".join(map(re.escape, FIELDS.values())))
    for row, job in zip(rows, jobs * 2, strict=True):
        phone_replies = {f"<|obs|>{t.observation}<|/obs|>" for t in row.turns if t.tool == "make_phone_call"}
        for text, role in spans(row, codec):
            if role is Role.PROMPT:
                assert text == f"<|task|>{job.task.request}<|/task|><|tool|>"
            if role is Role.OBSERVATION and text.removesuffix("<|tool|>") not in phone_replies:
                assert not spoken.search(text)
        for turn in row.turns:
            if turn.tool == "search_company":
                listed = json.loads(turn.observation)["departments"]
                assert all(set(d) == {"name", "phone", "description", "operating_hours"} for d in listed)
        for call in row.calls:  # the world model's state is built from the same observations
            assert not spoken.search(codec.decode(call.prompt))
    assert any(t.tool == "make_phone_call" for r in rows for t in r.turns)
