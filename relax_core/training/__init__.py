"""Training with Megatron-Core: weights from and to Hugging Face folders, one optimizer step per batch, checkpoints.

`trainer` is what others use, in a process of its own; `types` and `checkpoint` can be imported anywhere (no torch).
"""
