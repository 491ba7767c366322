"""The inputs of outcomes: what code and files may use, digests of it, and the store of earlier outcomes by them.

Nothing in here depends on pytest. Two ask: a run, once for each file, whether its tests run or earlier outcomes hold
(`OutcomeCache.decision`), and a comparison, for the inputs that differ between two trees.
"""
