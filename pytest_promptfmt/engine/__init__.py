"""The worker processes in which tests run, and a store of their outcomes by inputs.

Nothing in here depends on pytest, tasks or rules: a job is a row of numbers, its result is JSON.
"""
