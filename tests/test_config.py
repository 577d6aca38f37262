"""config: strict loading from YAML, overrides, what a misspelling is told, names of earlier versions, seeds."""

from __future__ import annotations

import dataclasses
import json
import string
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from lfo.config import (
    GROUPS,
    ConfigError,
    EnvConfig,
    ModelConfig,
    PolicyConfig,
    PpoConfig,
    RolloutConfig,
    RunConfig,
    WorldModelConfig,
    as_dict,
    build,
    derive_seed,
    flat,
    load_config,
)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def write(tmp_path):
    """write(text): a config file that holds it."""

    def to_file(text: str) -> Path:
        path = tmp_path / "run.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return to_file


# --- loading ---------------------------------------------------------------------------------


def test_an_empty_file_is_the_defaults(write):
    assert load_config(write("# nothing\n")) == RunConfig()


def test_groups_and_lists_are_read(write):
    text = "seed: 3\nenv: {levels: [1, 5]}\npolicy: {clip: [0.1, 0.3]}\nrollout:\n  group_size: 4\n"
    assert load_config(write(text)) == RunConfig(
        seed=3,
        env=EnvConfig(levels=(1, 5)),
        policy=PolicyConfig(clip=(0.1, 0.3)),
        rollout=RolloutConfig(group_size=4),
    )


def test_overrides_win_and_leave_the_rest(write):
    path = write("seed: 3\npolicy: {learning_rate: 0.01, clip: [0.1, 0.3]}\n")
    config = load_config(path, seed=4, **{"policy.learning_rate": 0.5, "rollout.temperature": 0.7})
    assert (config.seed, config.policy.learning_rate, config.policy.clip) == (4, 0.5, (0.1, 0.3))
    assert config.rollout.temperature == 0.7
    with pytest.raises(ConfigError, match="unknown setting 'path'"):
        load_config(path, **{"path": 3})


def test_a_world_model_is_left_out_and_taken_in(write):
    assert load_config(write("")).world_model is None and RunConfig().coupling == "none"
    assert load_config(write("world_model: {lam: 2}"), world_model=None).world_model is None
    config = load_config(write("world_model: null"), **{"world_model.coupling": "dream"})
    assert config.world_model == WorldModelConfig(coupling="dream") and config.coupling == "dream"


@pytest.mark.parametrize(("text", "value"), [("1e-3", 1e-3), ("1.0e-3", 1e-3), ("2", 2.0), ("1e-05", 1e-5)])
def test_every_way_to_write_a_number_is_one(write, text, value):
    """YAML 1.1 reads `1e-3` as text, and JSON writes 0.00001 as `1e-05`."""
    config = load_config(write(f"policy: {{learning_rate: {text}}}"))
    assert config.policy.learning_rate == value and type(config.policy.learning_rate) is float


def test_a_config_survives_json(write):
    world_model = WorldModelConfig(coupling="none", learning_rate=1e-5)
    for config in (RunConfig(), RunConfig(env=EnvConfig(levels=(3,)), world_model=world_model)):
        assert build(RunConfig, json.loads(json.dumps(as_dict(config)))) == config
        assert load_config(write(json.dumps(as_dict(config)))) == config  # JSON is YAML


@pytest.mark.parametrize("config", [RunConfig(), ModelConfig(), PolicyConfig(), RolloutConfig(), WorldModelConfig()])
def test_configs_are_frozen(config):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, dataclasses.fields(config)[0].name, 1)


# --- the shipped configs ---------------------------------------------------------------------

SHIPPED = {path: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "configs").glob("*.yaml"))}
RUNS = [path for path, data in SHIPPED.items() if "config" not in data]  # the others are grids


@pytest.mark.parametrize("path", RUNS, ids=lambda p: p.name)
def test_shipped_configs_load(path):
    assert isinstance(load_config(path), RunConfig)


def test_the_shipped_baseline_has_no_world_model():
    laptop = load_config(ROOT / "configs" / "laptop.yaml", world_model=None)
    assert laptop.world_model is None is load_config(ROOT / "configs" / "baseline.yaml").world_model


def test_both_layouts_of_the_8b_run_are_one_experiment():
    apart, together = (load_config(ROOT / "configs" / f"qwen3_8b{suffix}.yaml") for suffix in ("", "_colocated"))
    rollout = {"engine": "vllm", "gpu_memory": together.rollout.gpu_memory, "asynchronous": False}
    rollout = dataclasses.replace(apart.rollout, **rollout)
    layout = {"name": together.name, "distributed": together.distributed, "rollout": rollout}
    assert together == dataclasses.replace(apart, **layout)
    assert apart.distributed.processes + len(apart.rollout.servers) * apart.distributed.tensor_parallel == 8
    assert together.distributed.processes == 8


def test_the_8b_run_with_feedback_differs_in_that_alone():
    plain, guided = (load_config(ROOT / "configs" / f"qwen3_8b{suffix}.yaml") for suffix in ("", "_feedback"))
    told = (guided.feedback.start - 1) * guided.feedback.max_tokens  # one wave reads of all that played before
    length = plain.rollout.max_tokens + told
    assert guided == dataclasses.replace(
        plain,
        name=guided.name,
        world_model=None,
        feedback=guided.feedback,
        rollout=dataclasses.replace(plain.rollout, max_tokens=length),
        distributed=dataclasses.replace(plain.distributed, micro_batch_tokens=length),
    )


def dotted_names() -> set[str]:
    single = {field.name for field in dataclasses.fields(RunConfig)} - set(GROUPS)
    return single | {f"{group}.{field.name}" for group, kind in GROUPS.items() for field in dataclasses.fields(kind)}


def named_in(data: dict) -> set[str]:
    """The settings, by dotted name, that a config or a grid sets; a grid's `seeds` and `worlds` are seeds."""
    names = {name for key, name in {"seeds": "seed", "worlds": "env.world_seed"}.items() if key in data}
    for settings in (data, data.get("fixed", {}), data.get("grid", {}), *data.get("arms", {}).values()):
        for key, value in settings.items():
            group = GROUPS.get(key) if isinstance(value, dict) else None
            names |= {f"{key}.{inner}" for inner in value} if group else {key}
    return names


def test_there_are_at_most_89_settings_and_each_is_used_by_a_shipped_config():
    """60, one more since the baseline has what others make DAPO stronger with (a bonus, a penalty, imitation), the
    twelve of feedback, a method of its own, one for the rewards of a shell, the six of PPO, one for where episodes are
    played, one for the system that a shell runs on, one for who is told, and six for what world models know: how many
    there are, how many votes they have, how long the average of their weights is, what they read, replay, and words."""
    assert len(dotted_names()) <= 89
    used = set().union(*(named_in(data) for data in SHIPPED.values()))
    assert dotted_names() - used == set()


def test_what_a_config_names_is_found():
    grid = {"config": "x", "seeds": [0], "fixed": {"name": 1}, "arms": {"a": {"model.rank": 4}, "b": {}}, "grid": {}}
    assert named_in(grid) >= {"seed", "name", "model.rank"} and "world_model.lam" not in named_in(grid)
    assert named_in({"policy": {"epochs": 3}, "seed": 1}) == {"policy.epochs", "seed"}


# --- what is refused, and what is said -------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sed: 1", "unknown setting 'sed'; did you mean 'seed'?"),
        ("policy: {learning_rat: 1}", "unknown setting 'policy.learning_rat'; did you mean 'policy.learning_rate'?"),
        ("wold_model: {}", "unknown setting 'wold_model'; did you mean 'world_model'?"),
        ("lam: 1", "unknown setting 'lam'; did you mean 'world_model.lam'?"),
        ("policy: {lam: 1}", "unknown setting 'policy.lam'; did you mean 'world_model.lam'?"),
        ("rank: 1", "unknown setting 'rank'; did you mean 'model.rank'?"),
        ("dropout: 1", "unknown setting 'dropout'; did you mean 'model.dropout'?"),
        ("policy: {task_budget: 1}", "unknown setting 'policy.task_budget'; did you mean 'task_budget'?"),
        ("learning_rate: 1", "did you mean 'policy.learning_rate' or 'world_model.learning_rate'?"),
        ("zzz: 1", "unknown setting 'zzz'; known: name, seed, "),
        ("env: {zzz: 1}", "unknown setting 'env.zzz'; known: name, world_seed, levels, "),
        ("seed: one", "'seed': input should be a valid integer, got 'one'."),
        ("seed: true", "'seed': input should be a valid integer, got True."),
        ("seed: 1.5", "'seed': input should be a valid integer, got 1.5."),
        ("seed: -1", "'seed': input should be greater than or equal to 0, got -1."),
        ("task_budget: 0", "'task_budget': input should be greater than or equal to 1, got 0."),
        ("weight_decay: -0.1", "'weight_decay': input should be greater than or equal to 0, got -0.1."),
        ("weight_decay: .nan", "'weight_decay': input should be "),
        ("policy: {learning_rate: .inf}", "'policy.learning_rate': input should be a finite number, got inf."),
        ("policy: 3", "'policy': input should be a dictionary"),
        ("policy: {clip: 0.1}", "'policy.clip': input should be a list, as in [a, b], got 0.1."),
        ("policy: {clip: [0.1]}", "'policy.clip': field required"),
        ("policy: {clip: [0.1, -0.1]}", "'policy.clip': input should be greater than or equal to 0, got -0.1."),
        ("policy: {entropy: -0.01}", "'policy.entropy': input should be greater than or equal to 0, got -0.01."),
        ("policy: {kl: -1}", "'policy.kl': input should be greater than or equal to 0, got -1."),
        ("policy: {imitate: .nan}", "'policy.imitate': input should be "),
        ("policy: {learning_rate: 0, kl: 0.1}", "learns nothing: set it above 0, or policy.kl to 0."),
        (
            "policy: {learning_rate: 0, entropy: 0.1, imitate: 1}",
            "policy.learning_rate 0 learns nothing: set it above 0, or policy.entropy, policy.imitate to 0.",
        ),
        ("policy: {epochs: 0}", "'policy.epochs': input should be greater than or equal to 1, got 0."),
        ("model: {autocast: 1}", "'model.autocast': input should be "),
        ("model: {autocast: yes please}", "'model.autocast': input should be "),
        ("model: {dropout: a lot}", "'model.dropout': input should be a valid number"),
        ("model: {dropout: true}", "'model.dropout': a number is needed, got True."),
        ("model: {rank: 0}", "'model.rank': input should be greater than or equal to 1, got 0."),
        ("model: {targets: qv}", "'model.targets': input should be 'all-linear' or 'attention', got 'qv'."),
        ("model: {dialect: chatml}", "model.dialect is 'chatml'; choose tags, chat, or a .jinja file."),
        ("model: {dtype: bf16}", "'model.dtype': input should be 'float32' or 'bfloat16', got 'bf16'."),
        ("env: {levels: 1}", "'env.levels': input should be a list, as in [a, b], got 1."),
        ("env: {levels: [1, two]}", "'env.levels': input should be a valid integer"),
        ("env: {levels: []}", "'env.levels': tuple should have at least 1 item"),
        ("env: {levels: [0]}", "'env.levels': input should be greater than or equal to 1, got 0."),
        ("env: {levels: [true]}", "'env.levels': input should be a valid integer, got True."),
        ("env: {rewards: [.nan, 0, 0]}", "'env.rewards': input should be a finite number, got nan."),
        ("env: {rewards: [1, true, 0]}", "'env.rewards': a number is needed"),
        ("rollout: {gpu_memory: true}", "'rollout.gpu_memory': a number is needed"),
        ("rollout: {gpu_memory: 0}", "'rollout.gpu_memory': input should be greater than 0, got 0."),
        ("eval_splits: [tests]", "'eval_splits': input should be 'train', 'validation' or 'test', got 'tests'."),
        ("eval_splits: []", "'eval_splits': tuple should have at least 1 item"),
        ("rollout: {group_size: 1}", "set rollout.group_size above 1, not 1, or `ppo: {}`."),
        ("rollout: {group_size: 0}", "'rollout.group_size': input should be greater than or equal to 1, got 0."),
        ("ppo: {gamma: 1.1}", "'ppo.gamma': input should be less than or equal to 1, got 1.1."),
        ("ppo: {lambda: 0.9}", "unknown setting 'ppo.lambda'; did you mean 'ppo.gae_lambda'?"),
        ("ppo: {critic: maybe}", "'ppo.critic': input should be a valid boolean, got 'maybe'."),
        ("ppo: true", "'ppo': input should be a dictionary"),
        ("rollout: {gpu_memory: 0}", "'rollout.gpu_memory': input should be greater than 0, got 0."),
        ("rollout: {gpu_memory: 1.5}", "'rollout.gpu_memory': input should be less than or equal to 1, got 1.5."),
        ("rollout: {engine: vlm}", "rollout.engine is 'vlm'; choose torch, vllm, or http://127.0.0.1:8010,..."),
        ("rollout: {engine: 'http://a:1,b:2'}", "choose torch, vllm, or http://127.0.0.1:8010,..."),
        ("distributed: {processes: 0}", "'distributed.processes': input should be greater than or equal to 1, got 0."),
        (
            "world_model: {coupling: joined}",
            "'none', 'shared', 'echo', 'stacked', 'imagine', 'imagine_memory', 'dream', 'memory', 'truth' or 'cloning',"
            " got 'joined'.",
        ),
        (
            "world_model: {recall: all}",
            "'world_model.recall': input should be 'table', 'backoff', 'nearest', 'vote', 'linear'",
        ),
        ("world_model: {coupling: dream, members: 2}", "world_model.members and votes are for notes: set coupling"),
        ("world_model: {coupling: dream, reads: 2}", "world_model.reads: set coupling 'imagine'"),
        ("world_model: {coupling: truth, reads: 2}", "world_model.reads: set coupling 'imagine'"),
        ("world_model: {reads: 2, shuffle: true}", "no shuffle, anonymise or curiosity"),
        ("world_model: {reads: 2, anonymise: 0.5}", "no shuffle, anonymise or curiosity"),
        ("world_model: {reads: 2, curiosity: 0.5}", "no shuffle, anonymise or curiosity"),
        ("world_model: {votes: 3, curiosity: 0.5}", "set coupling 'imagine', and no curiosity"),
        ("world_model: {replay: heard, updates: 0}", "replay and word_dropout: set updates and lam above 0"),
        ("world_model: {replay: heard, lam: 0}", "replay and word_dropout: set updates and lam above 0"),
        ("world_model: {replay: heard, coupling: memory}", "no memory or truth"),
        ("world_model: {word_dropout: 0.1, updates: 0}", "replay and word_dropout: set updates and lam above 0"),
        ("world_model: {word_dropout: 0.1, coupling: truth}", "no memory or truth"),
        ("world_model: {word_dropout: 0.1, coupling: echo}", "word_dropout is for who learns replies apart"),
        ("world_model: {word_dropout: 0.1, coupling: cloning}", "word_dropout is for who learns replies apart"),
        ("{world_model: {word_dropout: 0.1}, model: {dialect: chat}}", "word_dropout would tear a chat template apart"),
        ("{feedback: {source: imagined}, world_model: {members: 2}}", "'imagined' asks one world model"),
        ("world_model: {unsure_below: 2}", "'world_model.unsure_below': input should be less than or equal to 1"),
        ("env: {circumstances: 7}", "'env.circumstances': input should be less than or equal to 6, got 7."),
        ("env: {circumstances: -1}", "'env.circumstances': input should be greater than or equal to 0, got -1."),
        ("env: {replies: short}", "'env.replies': input should be 'list' or 'reasons', got 'short'."),
        ("1: 2", "1 is no name of a setting."),
        ("policy: {epochs: 2}\nworld_model: {coupling: echo}", "needs policy.epochs 1"),
        ("world_model: {schedule: seldom}", "'world_first', 'hierarchical' or 'policy_leads', got 'seldom'."),
        ("world_model: {lam: -1}", "'world_model.lam': input should be greater than or equal to 0, got -1."),
        ("world_model: {anonymise: 1.5}", "'world_model.anonymise': input should be less than or equal to 1, got 1.5."),
        ("world_model: {dream_agreement: 0}", "'world_model.dream_agreement': input should be greater than 0"),
        ("- seed", " must hold a mapping of settings."),
        ("seed: 1\nenv: {levels: [1]}\nseed: 2", ", line 3 is not YAML ('seed' comes twice)."),
        ("a: {'1': 1, 1: 2, <<: {}, <<: {}}", ", line 1 is not YAML ('<<' comes twice)."),
        ("env: {levels: [1], levels: [2]}", ", line 1 is not YAML ('levels' comes twice)."),
        ("seed: [1", ", line 1 is not YAML (expected ',' or ']', but got '<stream end>')."),
    ],
)
def test_what_does_not_fit_is_named(write, text, sentence):
    with pytest.raises(ConfigError) as error:
        load_config(write(text))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_lists_what_there_is(write):
    path = write("")
    with pytest.raises(ConfigError) as error:
        load_config(path.parent / "other.yaml")
    assert str(error.value) == f"there is no config {path.parent / 'other.yaml'}; configs: {path}."
    with pytest.raises(ConfigError, match=r"configs: .*configs/laptop\.yaml, "):  # where there are none at all
        load_config("nowhere/other.yaml")


def test_a_grid_is_no_config():
    with pytest.raises(ConfigError, match=r"science\.yaml is a grid of many runs: `lfo sweep --grid "):
        load_config("configs/science.yaml")


def test_overrides_are_as_strict_as_the_file(write):
    with pytest.raises(ConfigError, match=r"'policy\.learning_rat'; did you mean 'policy.learning_rate'"):
        load_config(write(""), **{"policy.learning_rat": 0.1})
    with pytest.raises(ConfigError, match=r"unknown setting 'policy\.deep'"):
        load_config(write(""), **{"policy.deep.clip": 0.1})
    with pytest.raises(ConfigError, match=r"'policy' in .* is a single value, so 'policy\.clip' "):
        load_config(write("policy: 3"), **{"policy.clip": 0.1})


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"world_model.coupling": "echo", "world_model.shuffle": True}, "no shuffle, anonymise or schedule"),
        ({"world_model.coupling": "echo", "world_model.anonymise": 0.5}, "no shuffle, anonymise or schedule"),
        ({"world_model.coupling": "echo", "world_model.schedule": "alternating"}, "no shuffle, anonymise or schedule"),
        ({"world_model.coupling": "echo", "rollout.temperature": 0.7}, "'echo' needs policy.epochs 1"),
        ({"world_model.coupling": "echo", "model.dialect": "chat"}, "and the dialect 'tags'"),
        ({"world_model.shuffle": True, "world_model.predict": "all"}, "set world_model.predict to 'phone'"),
        ({"world_model.coupling": "none", "world_model.context_distillation": 0.5}, "set coupling 'imagine'"),
        ({"world_model.coupling": "memory", "world_model.curiosity": 0.5}, "asks who learned the replies"),
        ({"world_model.shuffle": True, "world_model.curiosity": 0.5}, "set coupling 'imagine', no shuffle"),
        ({"world_model.coupling": "truth", "world_model.curiosity": 0.5}, "asks who learned the replies"),
        (
            {"world_model.coupling": "cloning", "world_model.anonymise": 0.5},
            "'cloning' needs lam above 0, no anonymise",
        ),
        ({"world_model.coupling": "cloning", "world_model.shuffle": True}, "no shuffle"),
        ({"world_model.coupling": "cloning", "model.dialect": "chat"}, "and the dialect 'tags'"),
        ({"world_model.coupling": "cloning", "policy.imitate": 0.5}, "nothing from rewards: set policy.imitate to 0."),
        ({"world_model.coupling": "cloning", "world_model.curiosity": 0.5}, "asks who learned the replies"),
        ({"policy.max_grad_norm": 0}, "'policy.max_grad_norm': input should be greater than 0, got 0"),
        ({"world_model.coupling": "dream", "env.reward": "shaped"}, "set env.reward to 'binary'"),
        ({"world_model.scouts": 3, "rollout.group_size": 4}, "3 of 4 rollouts: leave the policy 2 or more"),
        (
            {"ppo.critic": True, "world_model.scouts": 1, "rollout.group_size": 1},
            "leave the policy 1 or more",
        ),
        ({"ppo.critic": True, "policy.learning_rate": 0}, "ppo and feedback need rewards"),
        ({"ppo.critic": True, "world_model.coupling": "cloning"}, "no coupling 'cloning'"),
        ({"ppo.critic": True, "feedback.start": 2}, "leave ppo out, or feedback"),
        ({"rollout.asynchronous": True}, "set policy.tis_cap to 2, say, to allow for it"),
        (
            {"feedback.start": 2, "policy.learning_rate": 0},
            "policy.learning_rate above 0",
        ),
        ({"feedback.start": 2, "world_model.coupling": "cloning"}, "no coupling 'cloning'"),
        ({"feedback.start": 2, "world_model.context_distillation": 1}, "set context_distillation to 0"),
        (
            {"feedback.teacher": "average", "world_model.coupling": "stacked"},
            "set feedback.teacher to 'live' or 'base'",
        ),
        ({"feedback.source": "imagined"}, "set coupling 'imagine'"),
        ({"feedback.source": "imagined", "world_model.coupling": "memory"}, "set coupling 'imagine'"),
        ({"feedback.start": 2, "policy.imitate": 0.5}, "set policy.imitate to 0"),
        ({"world_model.coupling": "shared", "policy.learning_rate": 0}, "has the policy's adapter alone"),
        ({"world_model.coupling": "cloning", "world_model.lam": 0}, "needs lam above 0"),
        ({"rollout.temperature": 0}, "set rollout.temperature above 0"),
        ({"eval_splits": ["test", "test"]}, "each of them can be named once"),
        ({"env.levels": [1, 2, 1]}, "each of them can be named once"),
        ({"world_model.recall": "additive"}, "world_model.recall is for coupling 'memory' alone"),
        ({"world_model.coupling": "memory", "world_model.unsure_below": 0.5}, "is for coupling 'imagine' alone"),
        ({"world_model.dream_agreement": 0.5}, "is for coupling 'dream' alone"),
        ({"feedback.start": 9}, "feedback.start is 9 of 8 rollouts of a group"),
        ({"feedback.start": 8, "world_model.scouts": 1}, "feedback.start is 8 of 7 rollouts of a group"),
        ({"feedback.learn": "kl", "feedback.source": "model"}, "set feedback.source to 'rules'"),
        ({"feedback.learn": "kl", "world_model.schedule": "hierarchical"}, "set world_model.schedule to 'joint'"),
        ({"rollout.asynchronous": True, "rollout.engine": "vllm"}, "engine 'vllm' sleeps while the learner learns"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(write, settings, sentence):
    with pytest.raises(ConfigError) as error:
        load_config(write(""), **settings)
    assert sentence in str(error.value)


def test_what_is_refused_together_is_good_apart(write):
    good = {"policy.tis_cap": 2, "world_model.scouts": 2, "rollout.group_size": 4, "rollout.asynchronous": True}
    assert load_config(write(""), **good).world_model.scouts == 2
    assert load_config(write(""), **{"world_model.context_distillation": 0.5}).coupling == "imagine"
    for coupling in ("echo", "dream", "cloning"):
        assert load_config(write(""), **{"world_model.coupling": coupling}).coupling == coupling
    for coupling in ("imagine_memory", "memory", "truth"):
        distilling = {"world_model.coupling": coupling, "world_model.context_distillation": 0.5}
        assert load_config(write(""), **distilling).coupling == coupling
    assert load_config(write(""), **{"policy.learning_rate": 0, "world_model.curiosity": 0.5}).policy.learning_rate == 0
    kl = {"feedback.learn": "kl", "feedback.start": 9}
    assert load_config(write(""), **kl).feedback.start == 9
    assert load_config(write(""), **{"feedback.source": "imagined", "world_model.coupling": "dream"}).feedback
    alone = load_config(write(""), **{"ppo.critic": False, "rollout.group_size": 1})
    assert alone.ppo == PpoConfig(critic=False) and load_config(write("ppo: {}")).ppo == PpoConfig()
    assert load_config(write("ppo: {}"), ppo=None).ppo is None
    more = {"policy.entropy": 0.01, "policy.kl": 0.01, "policy.imitate": 0.5}
    assert load_config(write(""), **more).policy.extras == "policy.entropy, policy.kl, policy.imitate"


def test_servers_are_the_addresses_in_the_engine(write):
    config = load_config(write("rollout: {engine: 'http://a:8000, https://b'}"))
    assert config.rollout.servers == ["http://a:8000", "https://b"]
    assert RolloutConfig().servers == RolloutConfig(engine="vllm").servers == []


# --- committed runs -------------------------------------------------------------------------


COMMITTED = sorted((ROOT / "results").glob("**/config.json"))


def test_every_committed_run_can_be_read():
    """Their settings have today's names; what they do not name is what holds now."""
    assert len(COMMITTED) > 100
    for path in COMMITTED:
        config = build(RunConfig, json.loads(path.read_text()))
        assert load_config(path) == config == build(RunConfig, as_dict(config))


def test_runs_of_the_first_round_are_what_they_said_they_were():
    """Their settings were given today's names; provenance.json has those that they began with."""
    first = [path for path in COMMITTED if "first_round" in path.parts]
    assert len(first) == 213
    for path in first:
        began = flat(json.loads(path.with_name("provenance.json").read_text())["config"])
        now = flat(json.loads(path.read_text()))
        echoes = began.get("world_model.template") == "trajectory"
        same = {name for name in began.keys() & now if name != "world_model.coupling" or not echoes}
        assert len(same) > 20 and all(began[name] == now[name] for name in same), path
        assert (began["world_seed"], began["levels"]) == (now["env.world_seed"], now["env.levels"])


# --- seeds ---------------------------------------------------------------------------------


def test_derived_seeds_stay_what_they_were():
    """First four bytes of SHA-256("0/rollout/1"), little endian, without the highest bit: other seeds, other runs."""
    assert derive_seed(0, "rollout", 1) == 0x70D954F7
    assert derive_seed("x") == 0x4216712D


@given(st.lists(st.text(string.ascii_letters), max_size=4), st.integers())
def test_derived_seeds_fit_every_generator(parts, number):
    assert 0 <= derive_seed(*parts, number) < 2**31


def test_derived_seeds_differ_by_every_part():
    seeds = {derive_seed(s, what, step) for s in range(5) for what in ("episode", "rollout") for step in range(100)}
    assert len(seeds) == 1000
