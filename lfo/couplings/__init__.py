"""How a world model reaches the policy: one class each, chosen by `world_model.coupling`."""

from __future__ import annotations

from lfo.config import ConfigError, RunConfig
from lfo.couplings.cloning import Cloning
from lfo.couplings.dream import Dream
from lfo.couplings.feedback import Guided
from lfo.couplings.imagine import Imagine, ImagineMemory
from lfo.couplings.memory import Memory
from lfo.couplings.noted import Noted, Truth
from lfo.couplings.plain import ALONE, BOTH, SHARED, STACKED, Echo, Plain
from lfo.protocols import Coupling, Environment
from lfo.text import Codec, load_codec

__all__ = ["BOTH", "Dream", "Echo", "Guided", "Imagine", "Memory", "Noted", "Plain", "Truth", "alone", "make_coupling"]


def make_coupling(config: RunConfig, env: Environment) -> tuple[Codec, Coupling]:
    """The codec and the coupling of a run in an environment.

    Raises:
        ConfigError: there is to be a world model of an environment that has nothing to model, or not that, or feedback
            where nobody says anything.
    """
    w = config.world_model
    if w and env.knowledge is None:
        raise ConfigError(f"environment '{config.env.name}' has nothing to model; leave world_model out.")
    if w and w.predict not in env.knowledge.learned:
        known = ", ".join(env.knowledge.learned)
        raise ConfigError(f"world_model.predict is '{w.predict}'; environment '{config.env.name}' knows: {known}.")
    if config.feedback and env.knowledge is None:
        raise ConfigError(f"environment '{config.env.name}' says nothing that feedback is made of; leave feedback out.")
    codec = load_codec(config.model, env, in_passing=config.coupling == "echo")
    coupling = _coupling(config, codec)
    return codec, Guided(config, codec, coupling) if config.feedback else coupling


def _coupling(config: RunConfig, codec: Codec) -> Coupling:
    w = config.world_model
    if w is None:
        return Plain(ALONE)
    layouts = {"none": BOTH, "shared": SHARED, "stacked": STACKED}
    if w.coupling in layouts:
        return Plain(layouts[w.coupling], w.scouts)
    if w.coupling == "echo":
        return Echo(SHARED, codec.env.knowledge.learned[w.predict], w.scouts)
    if w.coupling == "cloning":
        return Cloning(SHARED, w.scouts)
    if w.coupling == "truth":
        return Truth(codec, w.scouts, w.context_distillation)
    if w.coupling == "dream":
        return Dream(config, codec)
    tellers = {"memory": Memory, "imagine": Imagine, "imagine_memory": ImagineMemory}
    return tellers[w.coupling](w, codec)


def alone(coupling: Coupling) -> Plain:
    """The same adapters with a policy that is told nothing."""
    return Plain(coupling.layout)
