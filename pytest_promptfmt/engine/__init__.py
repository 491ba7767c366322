"""Where tests run and what is remembered of them: worker processes, and a store of outcomes by their inputs.

Nothing in here knows pytest, tasks or rules: a job is a row of numbers, its result what JSON can hold.
"""
