"""Environments for others, and others' environments for us; docs/integrations.md says what works and what does not.

`trl` brings any of our environments into TRL's trainers, `gym` any Gymnasium environment over text into `lfo`. Each
stands alone and is imported where it is needed; the core knows none of them.
"""
