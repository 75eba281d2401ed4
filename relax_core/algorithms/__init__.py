"""The mathematics of every estimator: pure functions on tensors and masks, and one table that says what each is.

Shapes are in the names: B responses, T token slots, V vocabulary. A mask is bool, True where a token counts. Imports
only torch and the standard library; `table` imports no torch at all.
"""
