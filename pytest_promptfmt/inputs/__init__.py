"""The inputs of outcomes: what code and files may use, digests of it, and the store of earlier outcomes by them.

Nothing in here depends on pytest, rules or runs. Two ask: a run, for the inputs that differ from those of an earlier
one, and a comparison, for those that differ between two trees.
"""
