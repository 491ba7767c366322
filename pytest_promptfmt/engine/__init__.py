"""The worker processes in which tests run.

Nothing in here depends on pytest, tasks or rules: a job is a row of numbers, its result is JSON.
"""
