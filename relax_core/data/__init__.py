"""From a source of problems to a cleaned dataset: `prepare` makes and opens one, `order` says which prompts a step
asks.

This file imports nothing, so that the code version of one module of the package does not take in all of them.
"""
