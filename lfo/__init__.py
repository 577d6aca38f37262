"""lfo - Learning from Observation: LLM agents that learn from what their environment says.

Import order, lowest first (``tests/test_layout.py`` enforces it)::

    0  types  proportions  config  protocols     what everything is made of; the seams
    1  runs  distributed                         a run folder; several processes as one
    2  envs                                      worlds to act in
    3  text                                      the frozen base; text <-> ids with roles
    4  rollout  learn                            weights -> trajectories; trajectories -> weights
    5  couplings                                 how a world model reaches the policy
    6  evaluate  train                           measurements; the only loop
    7  lab                                       figures, tables, measurements of finished runs, many runs
    8  cli                                       the command line

`rollout` and `learn` never import each other, environments import no torch, nothing imports vLLM at module level, and
of all this only the command line knows the laboratory.
"""

__version__ = "0.1.0"
