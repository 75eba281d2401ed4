"""Base models: the built-in `tiny` and folders of one's own (`base`), in a store by content (`store`).

This file imports nothing, so that the code version of one module of the package does not take in all of them.
"""
