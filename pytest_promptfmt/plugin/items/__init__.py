"""The kinds of test, and their pytest items: what each tests, when it skips, and how its failure reads.

What an item compares and shows is made by the packages before this one; what the items of a run share is its `Run`.
"""
