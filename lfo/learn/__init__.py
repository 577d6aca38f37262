"""Trajectories -> weights. Never imports `lfo.rollout`."""
