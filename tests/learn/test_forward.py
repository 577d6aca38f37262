"""forward: packed passes are the plain padded ones, in value and gradient, whatever bounds memory or saves time."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from learning import close, gradients, gradients_of, plain, plain_logprobs, same

from lfo.config import ConfigError
from lfo.learn.batches import pack
from lfo.learn.forward import attend
from lfo.learn.learner import Learner
from lfo.rollout.torch_engine import TorchEngine
from lfo.types import POLICY, WORLD_MODEL

# They share beginnings; one is the beginning of another, two are the same, one is by itself.
SEQUENCES = [[7, 8, 9, 10], [7, 8, 9, 11, 12, 13, 14], [30, 31], [7, 8], [7, 8, 9, 10]]
ASKED = [[1, 3], [2, 3, 6], [1], [1], [2, 3]]


def packed_logprobs(learner: Learner, temperature: float = 1.0) -> torch.Tensor:
    learner.activate(POLICY)
    return learner.scorer(pack(SEQUENCES, ASKED), temperature)[0]


def slope(logprobs: torch.Tensor) -> torch.Tensor:
    """A sum in which every log-probability has another weight."""
    return (logprobs * torch.linspace(-1, 1, len(logprobs))).sum()


def test_a_model_that_the_learner_does_not_know_is_refused(make_learner, tmp_path):
    small = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}
    config = transformers.GPTNeoXConfig(vocab_size=100, **small)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"the learner cannot train 'gpt_neox'; choose another model\.base"):
        make_learner(**{"model.base": str(tmp_path)})


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


# --- packed is padded --------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("coupling", ["none", "stacked"])
def test_packed_logprobs_and_gradients_are_those_of_a_padded_pass(make_learner, coupling, temperature):
    learner = make_learner(**{"world_model.coupling": coupling})
    model = plain(learner)
    packed, padded = packed_logprobs(learner, temperature), plain_logprobs(model, SEQUENCES, ASKED, temperature)
    assert torch.allclose(packed, padded, atol=1e-4)
    slope(packed).backward()
    slope(padded).backward()
    ours, theirs = ({n: p.grad for n, p in m.named_parameters() if p.grad is not None} for m in (learner.model, model))
    assert ours.keys() == theirs.keys() and close(list(ours.values()), list(theirs.values()))


def test_gradients_are_the_same_again_with_two_threads(make_learner, two_threads):
    """What many tokens follow on has a sum of gradients, which must not depend on which thread comes first."""
    learner, sequences = make_learner(), [[7, last, token] for token in range(20, 1000) for last in range(8, 12)]
    found = []
    for _ in range(6):
        learner.activate(POLICY)
        slope(learner.scorer(pack(sequences, [[2]] * len(sequences)))[0]).backward()
        found.append(gradients(learner, POLICY))
        learner.optimizer.zero_grad()
    assert all(same(each, found[0]) for each in found)


def test_the_arg_max_is_found(make_learner):
    """Asked for the tokens that the model itself thinks likeliest, and for others."""
    learner = make_learner()
    with torch.no_grad():
        best = plain(learner)(torch.tensor([SEQUENCES[1]])).logits[0].argmax(-1).tolist()
    sequences = [[*SEQUENCES[1][:3], best[2]], [*SEQUENCES[1][:3], best[2] + 1]]
    assert learner.scorer(pack(sequences, [[3], [3]]))[1].tolist() == [True, False]


def test_entropies_are_those_of_the_sampling_distribution(make_learner):
    """In value and gradient, against the definition on a padded pass; also where they are made in chunks."""
    learner, other = make_learner(), make_learner()
    other.scorer.chunk, model = 4, plain(learner)
    longest = max(map(len, SEQUENCES))
    logits = model(torch.tensor([[*s, *[0] * (longest - len(s))] for s in SEQUENCES])).logits / 0.7
    spread = torch.distributions.Categorical(logits=logits).entropy()
    expected = torch.stack([spread[b, t - 1] for b, where in enumerate(ASKED) for t in where])
    slope(expected).backward()
    theirs = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    for each in (learner, other):
        each.activate(POLICY)
        logprobs, _, entropies = each.scorer(pack(SEQUENCES, ASKED), 0.7, True)
        assert torch.equal(logprobs, packed_logprobs(each, 0.7)) and torch.allclose(entropies, expected, atol=1e-4)
        slope(entropies).backward()
        ours = {n: p.grad for n, p in each.model.named_parameters() if p.grad is not None}
        assert ours.keys() == theirs.keys() and close(list(ours.values()), list(theirs.values()), rtol=1e-3)


def test_an_entropy_by_hand(make_learner, monkeypatch):
    """Probabilities 1/2, 1/4, 1/4: H = 3/2 ln 2, and dH / d logit = -p (ln p + H): -1/4, 1/8 and 1/8 of ln 2."""
    scorer = make_learner().scorer
    monkeypatch.setattr(scorer.model.get_base_model(), "lm_head", torch.nn.Identity())
    logits, target = torch.tensor([[0.5, 0.25, 0.25]]).log().requires_grad_(), torch.tensor([1])
    logprob, correct, entropy = scorer._score(logits, target, 1.0, True)
    entropy.sum().backward()
    assert (logprob.item(), correct.item()) == (pytest.approx(math.log(0.25)), False)
    assert entropy.tolist() == pytest.approx([1.5 * math.log(2)])
    assert logits.grad[0].tolist() == pytest.approx([-0.25 * math.log(2), 0.125 * math.log(2), 0.125 * math.log(2)])
    assert len(scorer._score(logits, target, 1.0, False)) == 2  # nobody asked


def test_nothing_asked_for_is_nothing_that_can_go_backward(make_learner):
    learner = make_learner()
    learner.activate(POLICY)
    logprobs, correct = learner.scorer(pack([[0, 0]]))
    assert (len(logprobs), len(correct)) == (0, 0)
    logprobs.sum().backward()
    assert all(g.abs().sum() == 0 for g in gradients(learner, POLICY))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 3])
def test_attention_is_that_of_each_sequence_by_itself(dtype, window):
    """Four heads on two, packed against one sequence at a time with a mask."""
    batch = pack(SEQUENCES)
    count = batch.tokens.shape[1]
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 4, count, 8, generator=generator).to(dtype).requires_grad_()
    key, value = (torch.randn(1, 2, count, 8, generator=generator).to(dtype).requires_grad_() for _ in range(2))
    out, _ = attend(None, query, key, value, None, sliding_window=window, rows=batch.rows, places=batch.places)
    assert out.shape == (1, count, 4, 8)
    expected = torch.zeros(count, 4, 8)
    for nodes in ([0, 1, 2, 3], [0, 1, 2, 4, 5, 6, 7], [8, 9]):
        nodes = torch.tensor(nodes)
        q, k, v = (x[:, :, nodes].float() for x in (query, key, value))
        back = torch.arange(len(nodes))[:, None] - torch.arange(len(nodes))
        seen = (back >= 0) & (back < (window or len(nodes)))
        alone = F.scaled_dot_product_attention(q, k, v, seen, enable_gqa=True)[0].transpose(0, 1)
        expected = expected.index_copy(0, nodes, alone)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    assert torch.allclose(out[0].float(), expected, atol=tolerance, rtol=tolerance)
    weights = torch.randn(out.shape, generator=generator)
    ours = torch.autograd.grad((out.float() * weights).sum(), (query, key, value))
    theirs = torch.autograd.grad((expected * weights[0]).sum(), (query, key, value))
    assert close([g.float() for g in ours], [g.float() for g in theirs], rtol=1e-5 if dtype == torch.float32 else 0.05)


def test_attention_of_another_kind_is_refused(make_learner):
    batch = pack(SEQUENCES)
    x = torch.zeros(1, 1, batch.tokens.shape[1], 8)
    with pytest.raises(ConfigError, match=r"no attention with soft caps or sinks; choose another model\.base"):
        attend(None, x, x, x, None, rows=batch.rows, places=batch.places, softcap=30.0)


# --- what bounds memory ----------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_chunked_logprobs_are_the_unchunked_ones(make_learner, monkeypatch, chunk):
    """In value and gradient; and never more positions at a time, in the forward pass and when it is made again."""
    whole, chunked = make_learner(), make_learner()
    chunked.scorer.chunk, made, score = chunk, [], chunked.scorer._score
    monkeypatch.setattr(
        chunked.scorer, "_score", lambda hidden, *rest: made.append(len(hidden)) or score(hidden, *rest)
    )
    one, other = packed_logprobs(whole, 0.7), packed_logprobs(chunked, 0.7)
    slope(one).backward()
    slope(other).backward()
    assert torch.allclose(one, other, rtol=0, atol=1e-5)  # of 1 row: another kernel
    assert close(gradients(chunked, POLICY), gradients(whole, POLICY), rtol=1e-5)
    asked = len(pack(SEQUENCES, ASKED).learned)
    assert max(made) == min(chunk, asked) and sum(made) == (2 * asked if chunk < asked else asked)


def test_the_chunk_follows_from_the_vocabulary(make_learner):
    learner = make_learner()
    assert learner.scorer.chunk == 2**28 // learner.model.config.vocab_size


@pytest.mark.parametrize("autocast", [False, True])
def test_gradient_checkpointing_changes_no_gradient(make_learner, samples, examples, autocast):
    """Dropout included: the masks of the second forward pass are those of the first."""
    grads = []
    for on in (False, True):
        settings = {"distributed.gradient_checkpointing": on, "distributed.micro_batch_tokens": 20}
        learner = make_learner(**settings, **{"model.dropout": 0.2, "model.autocast": autocast})
        passes = count_passes(learner)
        seen, _ = gradients_of(learner, lambda x=learner: x.update(samples, examples, 1.0, 0))
        grads.append((seen, len(passes)))
    (once, few), (twice, many) = grads
    assert many == 2 * few
    for name in (POLICY, WORLD_MODEL):
        assert same(once[name], twice[name])


def count_passes(learner: Learner) -> list:
    """A list that grows with every pass through the first layer's query projection."""
    passes: list = []
    layer = learner.model.get_base_model().model.layers[0].self_attn.q_proj
    layer.register_forward_hook(lambda *_: passes.append(1))
    return passes


def test_another_adapter_before_the_backward_would_be_noticed(make_learner):
    """peft#2832: layers that run again in the backward pass run with the adapter that is active by then."""
    grads = {}
    for then in (POLICY, WORLD_MODEL):
        learner = make_learner(**{"distributed.gradient_checkpointing": True})
        loss = packed_logprobs(learner).sum()
        learner.activate(then)
        loss.backward()
        grads[then] = gradients(learner, POLICY)
    pairs = list(zip(grads[POLICY], grads[WORLD_MODEL], strict=True))
    assert not any(wrong is not None and torch.allclose(right, wrong, rtol=1e-3) for right, wrong in pairs)


# --- precision -------------------------------------------------------------------------------


def test_bf16_is_close_to_fp32(make_learner):
    full, half = make_learner(), make_learner(**{"model.autocast": True})
    exact, rounded = packed_logprobs(full), packed_logprobs(half)
    assert rounded.dtype == torch.float32 and not torch.equal(exact, rounded)
    assert torch.allclose(exact, rounded, atol=0.3)


def test_a_base_in_bf16_has_adapters_in_fp32(make_learner, examples, tmp_path, toy_path):
    learner = make_learner(**{"model.dtype": "bfloat16"})
    kinds = {(".lora_" in name, p.dtype) for name, p in learner.model.named_parameters()}
    assert kinds == {(True, torch.float32), (False, torch.bfloat16)}
    exact, rounded = packed_logprobs(make_learner()), packed_logprobs(learner)
    assert rounded.dtype == torch.float32 and not torch.equal(exact, rounded)
    assert torch.allclose(exact, rounded, atol=0.3)
    losses = [learner.replay(examples, 1.0, seed)["world_model/loss"] for seed in range(10)]
    assert losses[-1] < losses[0] - 0.1
    TorchEngine(toy_path).load(learner.save_adapters(tmp_path))
