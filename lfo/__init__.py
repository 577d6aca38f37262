"""lfo - Learning from Observation: LLM agents that learn from what their environment says.

Import order, lowest layer first (``tests/test_layout.py`` enforces it)::

    0  config  records  statistics                     what a run is, what the data is, what numbers say
    1  world   tools                                   hidden rules, public tools
    2  simulator  env                                  who answers, one episode
    3  base  tokens  distributed                       the frozen model; text <-> ids with roles; processes as one
    4  objectives  sampling  schedule                  losses; how groups are conditioned; who learns when
    5  rollout  learner                                weights -> trajectories; trajectories -> weights
    6  evaluate  train  transfer  probing              measurements; the only loop; finished runs, frozen
    7  figures  probing_figures  ablation_figures      result files -> figures, tables
    7  diagnostics  render                             advice on lambda; rollouts as HTML
    7  sweep  estimate  plan  scaling  cli             many runs; how long they take; GPU memory; command line
"""

__version__ = "0.1.0"
