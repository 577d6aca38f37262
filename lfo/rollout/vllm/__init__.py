"""vLLM as a plug-in: an engine in this process, and one that asks servers."""
