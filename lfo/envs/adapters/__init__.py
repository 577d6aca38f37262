"""Environments for others, and others' environments for us; docs/integrations.md says what works and what does not.

`trl` brings any of our environments into TRL's trainers, `openenv` puts it behind OpenEnv's server, `gym` brings any
Gymnasium environment over text into `lfo`. Each is imported where it is needed; the core knows none of them.
"""
