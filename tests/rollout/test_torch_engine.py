"""The torch engine: what it samples is what a plain forward pass says, whatever else it is asked."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest
import torch
import transformers
from peft import PeftModel
from transformers import AutoModelForCausalLM

from lfo.config import ConfigError
from lfo.rollout import Completion, Prompt, UnknownAdapter, complete, torch_engine
from lfo.rollout.decoder import Decoder, require_supported
from lfo.rollout.torch_engine import TorchEngine, rows_within
from lfo.text.base import load_base

NO_STOP = -1  # a token that is never sampled


@pytest.fixture(scope="module", params=[{}, {"rows": 3, "budget": 4}], ids=["roomy", "cramped"])
def engine(request, toy_path, toy_adapters) -> TorchEngine:
    """With plenty of rows; or with so few rows and tokens at a time that most requests wait."""
    engine = TorchEngine(toy_path, **request.param)
    engine.load(toy_adapters)
    return engine


@pytest.fixture
def fed(monkeypatch) -> list[list[list[int]]]:
    """What every step feeds: a list of tokens per row."""
    steps, step = [], Decoder.step

    def watched(self, chunks, starts, cache):
        steps.append([list(chunk) for chunk in chunks])
        return step(self, chunks, starts, cache)

    monkeypatch.setattr(Decoder, "step", watched)
    return steps


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


def some(rng: random.Random, count: int) -> list[int]:
    return [rng.randrange(1000) for _ in range(count)]


# --- the forward pass ------------------------------------------------------------------------

SMALL = {
    "vocab_size": 1000,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
    "max_position_embeddings": 512,
}
SCALED = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
FAMILY = {
    "llama": transformers.LlamaConfig(**SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama, scaled": transformers.LlamaConfig(
        **SMALL, head_dim=12, rope_parameters=SCALED | {"original_max_position_embeddings": 64}
    ),
    "mistral": transformers.MistralConfig(**SMALL, sliding_window=None),
    "qwen2": transformers.Qwen2Config(**SMALL),  # with biases
    "qwen3": transformers.Qwen3Config(**SMALL, head_dim=16),
}


def randomise(model: torch.nn.Module) -> None:
    """Biases and the norms' weights are 0 and 1 in a new model: mistakes would not show."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.uniform_(0.5, 1.5)


def plays_as(model, path) -> None:
    """Sessions of several turns have the log-probabilities of this model's own forward pass."""
    rng, engine = random.Random(0), TorchEngine(path, budget=40)
    prompts = [Prompt(some(rng, 2 + 7 * i), "base", 3 + i, NO_STOP, 1.0, i, session=i) for i in range(5)]
    for _ in range(3):
        following = []
        for prompt, completion in zip(prompts, complete(engine, prompts), strict=True):
            whole = [*prompt.tokens, *completion.tokens]
            with torch.no_grad():
                logprobs = torch.log_softmax(model(torch.tensor([whole])).logits[0], dim=-1)
            expected = logprobs[torch.arange(len(prompt.tokens) - 1, len(whole) - 1), completion.tokens]
            torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=1e-5)
            following.append(dataclasses.replace(prompt, tokens=whole + some(rng, 1 + len(whole) % 9)))
        prompts = following


@pytest.mark.parametrize("name", FAMILY)
def test_every_model_of_the_family(name, tmp_path):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILY[name], attn_implementation="eager").eval()
    randomise(model)
    model.save_pretrained(tmp_path)
    plays_as(model, tmp_path)


def test_the_embedded_base(base_path):
    plays_as(load_base(base_path).eval(), base_path)


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (transformers.GPT2Config(), "model type 'gpt2'"),
        (transformers.MistralConfig(sliding_window=64), r"sliding-window attention \('mistral'\)"),
        (
            transformers.Qwen2Config(use_sliding_window=True, sliding_window=64, max_window_layers=1),
            r"sliding-window attention \('qwen2'\)",
        ),
        (transformers.LlamaConfig(hidden_act="gelu"), "activation 'gelu'"),
        (
            transformers.LlamaConfig(rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}),
            "rotary embedding 'dynamic'",
        ),
    ],
)
def test_other_models_are_refused(config, what):
    with pytest.raises(ConfigError, match=f"cannot decode with {what}.*it knows llama.*'vllm' or to the addresses"):
        require_supported(config)


def test_an_engine_refuses_another_model(tmp_path):
    config = transformers.GPT2Config(vocab_size=100, n_embd=8, n_layer=1, n_head=1)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="gpt2"):
        TorchEngine(tmp_path)


# --- what is sampled -------------------------------------------------------------------------


def test_one_offs_of_all_adapters_come_back_in_order(engine, plain):
    rng = random.Random(1)
    names = ["world_model", "base", "policy", "world_model", "policy"]
    prompts = [Prompt(some(rng, 3 + 4 * i), name, 6, NO_STOP, 1.0, i) for i, name in enumerate(names)]
    completions = complete(engine, prompts)
    assert all(agree(plain, p, c) for p, c in zip(prompts, completions, strict=True))
    other = dataclasses.replace(prompts[0], adapter="policy")
    assert not agree(plain, other, completions[0])  # the check can tell adapters apart


def test_greedy_is_the_naive_arg_max(engine, plain):
    prompts = [Prompt([5, 6, 7], "policy", 8, NO_STOP, 0.0), Prompt([9], "world_model", 8, NO_STOP, 0.0)]
    for prompt, completion in zip(prompts, complete(engine, prompts), strict=True):
        tokens = list(prompt.tokens)
        for _ in range(8):
            tokens.append(int(plain(prompt.adapter, tokens)[-1].argmax()))
        assert completion.tokens == tokens[len(prompt.tokens) :]
    reseeded = [dataclasses.replace(prompt, seed=9) for prompt in prompts]
    assert complete(engine, prompts) == complete(engine, reseeded)


def test_the_seed_decides(engine):
    prompts = [Prompt([5, 6, i % 2], "policy", 12, NO_STOP, 1.0, seed=i // 2) for i in range(6)]
    first = complete(engine, prompts)
    assert complete(engine, prompts) == first
    assert len({tuple(c.tokens) for c in first}) == 6


def test_samples_follow_the_tempered_distribution(engine, plain):
    """2,000 first tokens at temperature 0.5: every frequency within 4.5 standard errors of its probability."""
    completions = complete(engine, [Prompt([5, 6], "policy", 1, NO_STOP, 0.5, seed) for seed in range(2000)])
    counts = torch.bincount(torch.tensor([c.tokens[0] for c in completions]), minlength=2)
    p = plain("policy", [5, 6], 0.5)[-1].exp()
    counts = torch.nn.functional.pad(counts, (0, len(p) - len(counts))) / 2000
    common = p > 0.004
    assert common.sum() >= 5
    assert ((counts - p).abs()[common] < 4.5 * (p * (1 - p) / 2000).sqrt()[common]).all()


def test_a_stop_token_ends_its_row_and_is_kept(engine):
    prompt = Prompt([5, 6, 7], "policy", 10, NO_STOP, 0.0)
    free = complete(engine, [prompt])[0].tokens
    stop = free[4]
    stopping = dataclasses.replace(prompt, stop=stop)
    stopped, unstopped, short = complete(engine, [stopping, prompt, dataclasses.replace(stopping, max_new=2)])
    assert stopped.tokens == free[: free.index(stop) + 1]
    assert (unstopped.tokens, short.tokens) == (free, free[:2])
    assert all(len(c.tokens) == len(c.logprobs) for c in (stopped, unstopped, short))


# --- who else is there -----------------------------------------------------------------------


def random_requests(rng: random.Random, count: int) -> list[Prompt]:
    """Of all adapters and temperatures, some with the same context, some in sessions."""
    contexts = [some(rng, rng.randrange(1, 30)) for _ in range(count // 2)]
    contexts += [context[: rng.randrange(1, 30)] for context in contexts[::2]]
    return [
        Prompt(
            rng.choice(contexts),
            rng.choice(["policy", "policy", "world_model"]),
            rng.randrange(1, 9),
            rng.randrange(1000),
            rng.choice([1.0, 0.5, 0.0]),
            seed,
            session=seed if rng.random() < 0.5 else None,
        )
        for seed in range(count)
    ]


def test_other_requests_never_matter(engine, plain):
    """Each is answered alike in every company: among all, alone, and when all come one by one in another order."""
    rng = random.Random(2)
    requests = random_requests(rng, 40)
    together = complete(engine, requests)
    assert all(agree(plain, p, c) for p, c in zip(requests, together, strict=True))
    assert [complete(engine, [request])[0].tokens for request in requests] == [c.tokens for c in together]
    left, under_way, late = rng.sample(range(40), 40), {}, {}
    while left or under_way:
        for _ in range(rng.randrange(4)):
            if left:
                number = left.pop()
                under_way[engine.submit(requests[number])] = number
        late |= {under_way.pop(ticket): completion for ticket, completion in engine.ready()}
    assert [late[i].tokens for i in range(40)] == [c.tokens for c in together]
    assert engine.ready() == []


def test_the_same_submissions_bring_the_same_completions(toy_path, toy_adapters):
    results = []
    for _ in range(2):
        engine = TorchEngine(toy_path)
        engine.load(toy_adapters)
        results.append(complete(engine, random_requests(random.Random(3), 20)))
    assert results[0] == results[1]


def test_rows_do_not_wait_for_each_other(engine):
    """The first to be done comes back alone, and its next turn starts beside the others."""
    long, short = (Prompt([5, n], "policy", n, NO_STOP, 1.0, session=n) for n in (9, 2))
    tickets = [engine.submit(long), engine.submit(short)]
    ((first, said),) = engine.ready()
    assert first == tickets[1]
    again = engine.submit(dataclasses.replace(short, tokens=[5, 2, *said.tokens]))
    assert [ticket for ticket, _ in engine.ready() + engine.ready()] == [again, tickets[0]]


def test_more_requests_than_rows(toy_path, toy_adapters, plain, fed):
    """Twenty rollouts of three turns in five rows: those who have a row keep it, and the others come later."""
    engine, rng = TorchEngine(toy_path, rows=5), random.Random(4)
    engine.load(toy_adapters)
    turns: Counter = Counter()
    under_way = {}

    def go_on(prompt: Prompt) -> None:
        under_way[engine.submit(prompt)] = prompt

    for session in range(20):
        go_on(Prompt(some(rng, 6), "policy", 3, NO_STOP, 1.0, session, session))
    while under_way:
        for ticket, completion in engine.ready():
            prompt = under_way.pop(ticket)
            assert agree(plain, prompt, completion)
            turns[prompt.session] += 1
            if turns[prompt.session] < 3:
                go_on(dataclasses.replace(prompt, tokens=[*prompt.tokens, *completion.tokens, *some(rng, 4)]))
            else:
                engine.end_session(prompt.session)
    assert set(turns.values()) == {3} and max(map(len, fed)) == 5
    assert sum(len(chunk) for step in fed for chunk in step) == 20 * (6 + 3 * 3 + 2 * 4 - 1)  # nothing is read twice


def test_a_one_off_does_not_wait_for_idle_sessions(toy_path, toy_adapters, plain):
    """All rows are kept for sessions, none of which asks for anything: one gives way, and reads again later."""
    engine = TorchEngine(toy_path, rows=2)
    engine.load(toy_adapters)
    sessions = [Prompt([5, 6, i], "policy", 3, NO_STOP, 1.0, session=i) for i in range(2)]
    complete(engine, sessions)
    for prompt in (Prompt([7, 8], "policy", 3, NO_STOP, 1.0), *sessions):
        assert agree(plain, prompt, complete(engine, [prompt])[0])


def test_two_requests_of_one_session_are_answered_in_turn(engine, plain):
    prompts = [Prompt([5, 6, i], "policy", 4, NO_STOP, 1.0, seed=i, session="s") for i in range(3)]
    assert all(agree(plain, p, c) for p, c in zip(prompts, complete(engine, prompts), strict=True))
    engine.end_session("s")


# --- what is kept ----------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_a_session_gives_what_a_full_forward_gives(engine, plain, temperature):
    """Rows of different lengths grow by different amounts over four turns, stop apart, leave and change places."""
    rng = random.Random(0)
    contexts = {key: some(rng, 2 + 5 * key) for key in range(5)}
    for turn, keys in enumerate(([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [3, 1, 4], [4, 3])):
        prompts = [
            Prompt(list(contexts[k]), "policy", 3 + k, rng.randrange(1000), temperature, turn, session=k) for k in keys
        ]
        for key, prompt, completion in zip(keys, prompts, complete(engine, prompts), strict=True):
            assert agree(plain, prompt, completion)
            contexts[key] += completion.tokens + some(rng, 1 + 4 * key % 7)
    for key in contexts:
        engine.end_session(key)


def test_a_session_reads_only_what_is_new(toy_path, plain, fed):
    engine = TorchEngine(toy_path)
    prompt = Prompt([5, 6, 7], "base", 3, NO_STOP, 1.0, session="s")
    (said,) = complete(engine, [prompt])
    longer = dataclasses.replace(prompt, tokens=[5, 6, 7, *said.tokens, 8, 9])
    complete(engine, [longer])
    first, second, third = said.tokens
    assert fed[:4] == [[[5, 6, 7]], [[first]], [[second]], [[third, 8, 9]]]
    engine.end_session("s")
    engine.end_session("never heard of")


def test_a_session_goes_back_to_what_its_requests_share(toy_path, plain, fed):
    """A side question, then something else: only the common beginning is kept."""
    engine, context = TorchEngine(toy_path), some(random.Random(5), 12)
    for tokens, new in ((context, 12), ([*context, 1, 2], 2), ([*context, 3], 1), (context[:6], 1), (context, 6)):
        fed.clear()
        prompt = Prompt(tokens, "base", 4, NO_STOP, 0.0, session="s")
        assert agree(plain, prompt, complete(engine, [prompt])[0])
        assert len(fed[0][0]) == new


def test_rows_with_one_context_read_it_once(toy_path, toy_adapters, plain, fed):
    """A group's rows share their prompt: it is fed once, and what they say alike is fed once as well."""
    engine = TorchEngine(toy_path)
    engine.load(toy_adapters)
    contexts = [[5, 6, 7] if k < 6 else [8, 9] for k in range(8)]
    prompts = [Prompt(c, "policy", 2 + k, NO_STOP, 0.5, k % 3, session=k) for k, c in enumerate(contexts)]
    completions = complete(engine, prompts)
    assert all(agree(plain, p, c) for p, c in zip(prompts, completions, strict=True))
    assert fed[0] == [[5, 6, 7], [8, 9]] or fed[0] == [[8, 9], [5, 6, 7]]
    wholes = [tuple(p.tokens) + tuple(c.tokens[:-1]) for p, c in zip(prompts, completions, strict=True)]
    distinct = {whole[:n] for whole in wholes for n in range(1, len(whole) + 1)}
    assert sum(len(chunk) for step in fed for chunk in step) == len(distinct)


def test_a_context_that_another_row_holds_is_taken_over(toy_path, plain, fed):
    engine, context = TorchEngine(toy_path), some(random.Random(6), 20)
    complete(engine, [Prompt(context, "base", 3, NO_STOP, 1.0, session=0)])
    fed.clear()
    for session, tokens in ((1, context), (2, [*context[:15], 1, 2])):
        prompt = Prompt(tokens, "base", 3, NO_STOP, 1.0, session=session)
        assert agree(plain, prompt, complete(engine, [prompt])[0])
    assert [len(chunk) for step in fed for chunk in step] == [1, 1, 1, 2, 1, 1]


def test_a_session_ends_with_its_weights(toy_path, toy_adapters, plain):
    engine = TorchEngine(toy_path)
    prompt = Prompt([5, 6, 7, 8], "policy", 4, NO_STOP, 1.0, session=0)
    engine.load({"policy": toy_adapters["world_model"]})
    (before,) = complete(engine, [prompt])
    engine.load({"policy": toy_adapters["policy"]})
    (after,) = complete(engine, [prompt])
    assert agree(plain, prompt, after) and before != after


def test_merging_happens_on_a_copy(toy_path, toy_adapters):
    """After many loads the pristine weights are bit for bit those of the file, and so is what is merged."""
    engine = TorchEngine(toy_path)
    prompt = Prompt([5, 6, 7], "policy", 6, NO_STOP, 1.0)
    engine.load(toy_adapters)
    first = complete(engine, [prompt, dataclasses.replace(prompt, adapter="base")])
    for _ in range(20):
        engine.load(toy_adapters)
    assert complete(engine, [prompt, dataclasses.replace(prompt, adapter="base")]) == first
    pristine, held = load_base(toy_path).state_dict(), engine._pristine.state_dict()
    assert held.keys() == pristine.keys() and all(torch.equal(held[k], pristine[k]) for k in pristine)


# --- counts and errors -----------------------------------------------------------------------


def test_generated_tokens_are_counted(engine):
    before = engine.generated_tokens
    complete(engine, [Prompt([5], "policy", n, NO_STOP, 1.0) for n in (1, 4)])
    assert engine.generated_tokens == before + 5
    assert complete(engine, []) == [] == engine.ready()


def test_errors_name_what_is_missing(toy_path, toy_adapters, tmp_path):
    engine = TorchEngine(toy_path)
    engine.load({"policy": toy_adapters["policy"]})
    with pytest.raises(UnknownAdapter) as error:
        engine.submit(Prompt([1], "wold_model", 1, NO_STOP, 1.0))
    assert str(error.value) == "no adapter 'wold_model' is loaded; loaded: base, policy."
    with pytest.raises(FileNotFoundError, match=r"holds no peft adapter \(adapter_config.json is missing\)"):
        engine.load({"policy": tmp_path})
    with pytest.raises(FileNotFoundError, match=r"no base model in .*make base"):
        TorchEngine(tmp_path / "nowhere")
    for tokens, max_new in (([], 1), ([1], 0)):
        with pytest.raises(ValueError, match="at least one token"):
            engine.submit(Prompt(tokens, "policy", max_new, NO_STOP, 1.0))


def test_nothing_is_loaded_or_completed_beside_something_else(toy_path, toy_adapters):
    engine = TorchEngine(toy_path)
    engine.submit(Prompt([5], "base", 1, NO_STOP, 1.0))
    with pytest.raises(RuntimeError, match="while requests are under way"):
        engine.load(toy_adapters)
    with pytest.raises(RuntimeError, match="wants the engine for itself"):
        complete(engine, [Prompt([6], "base", 4, NO_STOP, 1.0)])


def test_after_an_interrupt_the_engine_can_be_asked_again(toy_path, plain, monkeypatch):
    engine, prompt = TorchEngine(toy_path), Prompt([5, 6, 7], "base", 4, NO_STOP, 1.0, session="s")

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "forward", interrupted)
        engine.submit(prompt)
        with pytest.raises(KeyboardInterrupt):
            engine.ready()
    assert engine.ready() == []
    assert agree(plain, prompt, complete(engine, [prompt])[0])


def test_rows_are_as_many_as_their_keys_and_values_fit(toy_path, monkeypatch):
    """A model of 30 layers takes 46 KB a token in fp32: 128 rows of it would be more than a laptop has."""
    engine = TorchEngine(toy_path)
    assert engine._batch(engine._pristine).limit == 128
    decoder = Decoder(engine._pristine)
    token = decoder.token_bytes
    assert token == 2 * len(decoder.layers) * decoder.key_heads * decoder.head_dim * 4
    for rows, expected in {0: 1, 1: 1, 3: 2, 4: 4, 7: 4, 2: 2}.items():
        monkeypatch.setattr(torch_engine, "CACHE", rows * token * 1024)
        assert rows_within(token) == expected
    few = engine._batch(engine._pristine)
    assert few.limit == 2
    few.cache.reserve(2, 10)
    assert few.cache.slots == 16  # and no more, whatever the rows
