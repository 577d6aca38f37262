"""config: strict loading from YAML, overrides, what a misspelling is told, seeds."""

from __future__ import annotations

import dataclasses
import json
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lfo.config import (
    COUPLINGS,
    NO_WORLD_MODEL,
    ConfigError,
    DistributedConfig,
    EnvConfig,
    ModelConfig,
    PolicyConfig,
    RolloutConfig,
    RunConfig,
    WorldModelConfig,
    as_dict,
    build,
    derive_seed,
    load_config,
    start_notebook,
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
    config = load_config(write("seed: 3\nlevels: [1, 5]\npolicy: {learning_rate: 0.01}\nrollout:\n  group_size: 4\n"))
    assert config == dataclasses.replace(
        RunConfig(),
        seed=3,
        levels=(1, 5),
        policy=dataclasses.replace(PolicyConfig(), learning_rate=0.01),
        rollout=dataclasses.replace(RolloutConfig(), group_size=4),
    )


def test_overrides_win_and_leave_the_rest(write):
    path = write("seed: 3\npolicy: {learning_rate: 0.01, clip_low: 0.1}\n")
    config = load_config(path, seed=4, **{"policy.learning_rate": 0.5, "rollout.temperature": 0.7})
    assert (config.seed, config.policy.learning_rate, config.policy.clip_low) == (4, 0.5, 0.1)
    assert config.rollout.temperature == 0.7


@pytest.mark.parametrize(("text", "value"), [("1e-3", 1e-3), ("1.0e-3", 1e-3), ("2", 2.0), ("1e-05", 1e-5)])
def test_every_way_to_write_a_number_is_one(write, text, value):
    """YAML 1.1 reads `1e-3` as text, and JSON writes 0.00001 as `1e-05`."""
    config = load_config(write(f"policy: {{learning_rate: {text}}}"))
    assert config.policy.learning_rate == value and type(config.policy.learning_rate) is float


GRIDS = ("ablation_", "tuning_", "science")
RUN_CONFIGS = [p for p in sorted((ROOT / "configs").glob("*.yaml")) if not p.name.startswith(GRIDS)]


@pytest.mark.parametrize("path", RUN_CONFIGS, ids=lambda p: p.name)
def test_shipped_configs_load(path):
    assert isinstance(load_config(path), RunConfig)


def test_the_shipped_baseline_has_no_world_model():
    laptop = load_config(ROOT / "configs" / "laptop.yaml", **NO_WORLD_MODEL)
    assert laptop.world_model == load_config(ROOT / "configs" / "baseline.yaml").world_model


def test_both_layouts_of_the_8b_run_are_one_experiment():
    apart, together = (load_config(ROOT / "configs" / f"qwen3_8b{suffix}.yaml") for suffix in ("", "_colocated"))
    layout = {"name": together.name, "distributed": together.distributed}
    rollout = {"engine": "vllm", "servers": (), "gpu_memory": together.rollout.gpu_memory}
    assert together == dataclasses.replace(apart, **layout, rollout=dataclasses.replace(apart.rollout, **rollout))
    assert apart.distributed.processes + len(apart.rollout.servers) * apart.distributed.tensor_parallel == 8
    assert together.distributed.processes == 8


def test_a_config_survives_json(write):
    config = RunConfig(levels=(3,), model=ModelConfig(dropout=1e-5), world_model=WorldModelConfig(coupling="none"))
    assert build(RunConfig, json.loads(json.dumps(as_dict(config)))) == config
    assert load_config(write(json.dumps(as_dict(config)))) == config  # JSON is YAML


# --- what is refused, and what is said -------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("sed: 1", "unknown setting 'sed'; did you mean 'seed'?"),
        ("policy: {learning_rat: 1}", "unknown setting 'policy.learning_rat'; did you mean 'learning_rate'?"),
        ("wold_model: {}", "unknown setting 'wold_model'; did you mean 'world_model'?"),
        ("zzz: 1", "unknown setting 'zzz'; known: name, seed, "),
        ("seed: one", "'seed' must be of type int, got 'one'."),
        ("seed: true", "'seed' must be of type int, got True."),
        ("seed: 1.5", "'seed' must be of type int, got 1.5."),
        ("model: {autocast: 1}", "'model.autocast' must be of type bool, got 1."),
        ("model: {dropout: a lot}", "'model.dropout' must be of type float, got 'a lot'."),
        ("model: {dropout: true}", "'model.dropout' must be of type float, got True."),
        ("weight_decay: .nan", "'weight_decay' must be a finite number, got nan."),
        ("policy: {learning_rate: .inf}", "'policy.learning_rate' must be a finite number, got inf."),
        ("levels: 1", "'levels' must be a list, got 1."),
        ("levels: [1, two]", "'levels' must be of type int, got 'two'."),
        ("levels: []", "RunConfig.levels is (); give one or more of 1 to 5."),
        ("levels: [0]", "RunConfig.levels is (0,); give one or more of 1 to 5."),
        ("policy: 3", "'policy' is a group of settings, got 3."),
        ("- seed", " must hold a mapping of settings."),
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
    with pytest.raises(ConfigError, match="none in this folder"):
        load_config("nowhere/other.yaml")


def test_overrides_are_as_strict_as_the_file(write):
    path = write("policy: 3")
    with pytest.raises(ConfigError, match="did you mean 'clip_low'"):
        load_config(write(""), **{"policy.clip_lo": 0.1})
    with pytest.raises(ConfigError, match=r"unknown setting 'policy\.deep'"):
        load_config(write(""), **{"policy.deep.clip_low": 0.1})
    write("policy: 3")
    with pytest.raises(ConfigError, match=r"'policy' in .* is a single value, so 'policy\.clip_low' "):
        load_config(path, **{"policy.clip_low": 0.1})


@pytest.mark.parametrize(
    ("kind", "setting", "sentence"),
    [
        (RunConfig, {"task_budget": 0}, "RunConfig.task_budget is 0; it must be >= 1."),
        (RunConfig, {"seed": -1}, "RunConfig.seed is -1; it must be >= 0."),
        (RunConfig, {"eval_splits": ("tests",)}, "eval_splits is ('tests',); choose among train, validation, test."),
        (RunConfig, {"weight_decay": -0.1}, "RunConfig.weight_decay is -0.1; it must be >= 0."),
        (ModelConfig, {"rank": 0}, "ModelConfig.rank is 0; it must be >= 1."),
        (ModelConfig, {"targets": "qv"}, "ModelConfig.targets is 'qv'; choose one of: all-linear, qvo."),
        (PolicyConfig, {"clip_high": -0.1}, "PolicyConfig.clip_high is -0.1; it must be >= 0.0."),
        (PolicyConfig, {"epochs": 0}, "PolicyConfig.epochs is 0; it must be >= 1."),
        (PolicyConfig, {"groups_per_update": 0}, "PolicyConfig.groups_per_update is 0; it must be >= 1."),
        (ModelConfig, {"dialect": "chatml"}, "ModelConfig.dialect is 'chatml'; choose one of: tags, chat."),
        (ModelConfig, {"thinking": True}, "model.chat_template and model.thinking belong to model.dialect 'chat'."),
        (ModelConfig, {"chat_template": "x"}, "belong to model.dialect 'chat'."),
        (DistributedConfig, {"processes": 0}, "DistributedConfig.processes is 0; it must be >= 1."),
        (DistributedConfig, {"logit_chunk": -1}, "DistributedConfig.logit_chunk is -1; it must be >= 0."),
        (DistributedConfig, {"base_dtype": "bf16"}, "choose one of: float32, bfloat16."),
        (RolloutConfig, {"group_size": 1}, "RolloutConfig.group_size is 1; it must be >= 2."),
        (WorldModelConfig, {"lam": -1.0}, "WorldModelConfig.lam is -1.0; it must be >= 0.0."),
        (WorldModelConfig, {"coupling": "joined"}, f"choose one of: {', '.join(COUPLINGS)}."),
        (WorldModelConfig, {"dream_agreement": 0.0}, "dream_agreement is 0.0; it must be > 0 and <= 1."),
        (
            RunConfig,
            {"world_model": WorldModelConfig(coupling="dream"), "env": EnvConfig(reward="shaped")},
            "set env.reward to 'binary'.",
        ),
        (
            RunConfig,
            {"policy": PolicyConfig(internalise=0.5), "world_model": WorldModelConfig(coupling="none")},
            "set world_model.coupling to 'imagine'.",
        ),
        (
            WorldModelConfig,
            {"schedule": "hierarchical", "template": "trajectory", "coupling": "shared"},
            "the template 'call'.",
        ),
        (WorldModelConfig, {"schedule": "sometimes"}, "choose one of: joint, alternating, world_first, hierarchical."),
        (WorldModelConfig, {"template": "trajectory"}, "set coupling 'shared' and no shuffle."),
        (
            RunConfig,
            {"policy": PolicyConfig(surprise=0.1), "world_model": WorldModelConfig(coupling="none", predict="nothing")},
            "policy.surprise needs a world model",
        ),
        (WorldModelConfig, {"disguise": 1.5}, "it must be >= 0 and <= 1."),
        (WorldModelConfig, {"template": "trajectory", "coupling": "shared", "disguise": 0.5}, "the template 'call'."),
        (RolloutConfig, {"asynchronous": True, "engine": "vllm"}, "engine 'vllm' sleeps while the learner learns: set"),
        (RunConfig, {"rollout": RolloutConfig(asynchronous=True)}, "which corrects for it, to 2, say."),
        (WorldModelConfig, {"shuffle": True, "predict": "all"}, "set world_model.predict to 'phone'."),
        (WorldModelConfig, {"predict": "phones"}, "choose one of: nothing, phone, phone+form, all."),
    ],
)
def test_settings_are_validated_when_they_are_made(kind, setting, sentence):
    with pytest.raises(ConfigError) as error:
        kind(**setting)
    assert sentence in str(error.value)


def test_a_baseline_needs_no_world_model():
    WorldModelConfig(predict="nothing", coupling="none")


@pytest.mark.parametrize("coupling", [c for c in COUPLINGS if c not in ("none", "shared")])
def test_knowledge_can_only_come_from_a_world_model(coupling):
    with pytest.raises(ConfigError, match=f"coupling '{coupling}' needs a world model"):
        WorldModelConfig(predict="nothing", coupling=coupling)


@pytest.mark.parametrize("config", [RunConfig(), ModelConfig(), PolicyConfig(), RolloutConfig(), WorldModelConfig()])
def test_configs_are_frozen(config):
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, dataclasses.fields(config)[0].name, 1)


# --- profiles and seeds ----------------------------------------------------------------------


def test_notebooks_start_in_the_repository_root(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # and back at the end
    monkeypatch.delenv("LFO_PROFILE", raising=False)
    assert start_notebook("laptop", "results") == ("laptop", Path("results"))
    assert Path.cwd() == ROOT


def test_profile_comes_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LFO_PROFILE", "smoke")
    assert start_notebook("laptop", "results") == ("smoke", Path("build/smoke"))
    monkeypatch.setenv("LFO_PROFILE", "")
    assert start_notebook("laptop", "results") == ("laptop", Path("results"))


def test_an_unknown_profile_lists_what_there_is(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LFO_PROFILE", "laptpo")
    with pytest.raises(ConfigError, match=r"no profile 'laptpo'; profiles: .*laptop, .*smoke"):
        start_notebook("laptop", "results")


def test_an_installed_package_leaves_the_working_directory(monkeypatch, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LFO_PROFILE", raising=False)
    monkeypatch.setattr("lfo.config.__file__", str(tmp_path / "site-packages" / "lfo" / "config.py"))
    assert start_notebook("mine", "out") == ("mine", Path("out"))
    assert Path.cwd() == tmp_path


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


# --- engines ---------------------------------------------------------------------------------


def test_servers_are_named_for_the_engine_that_uses_them(write):
    config = load_config(write("rollout: {engine: server, servers: [http://a:8000, https://b]}"))
    assert config.rollout.servers == ("http://a:8000", "https://b")
    for settings in ({"engine": "server"}, {"servers": ("http://a:8000",)}):
        with pytest.raises(ConfigError, match=r"'server' and rollout\.servers.* must be given together"):
            RolloutConfig(**settings)
    with pytest.raises(ConfigError, match=r"servers has 'a:8000'; give addresses such as http://127"):
        RolloutConfig(engine="server", servers=("a:8000",))


@pytest.mark.parametrize("settings", [{"engine": "vlm"}, {"dtype": "fp16"}, {"gpu_memory": 0.0}, {"gpu_memory": 1.5}])
def test_what_no_engine_can_do_is_refused(settings):
    (name,) = settings
    with pytest.raises(ConfigError, match=rf"RolloutConfig\.{name} is "):
        RolloutConfig(**settings)
