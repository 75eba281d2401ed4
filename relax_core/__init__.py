"""Relax: reinforcement-learning post-training of language models. The system itself; it imports no flytekit."""
