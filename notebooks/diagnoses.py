"""The tests of chapters 4 and 6, whose answers are numbers. A key has a hash of each."""

import hashlib


def fits(key, run, number):
    """Whether this is the run's number."""
    return hashlib.sha256(f"run {run}: {number}".encode()).hexdigest()[:8] == key[run]


def judge(key, numbers, hint):
    """Print "Correct"; AssertionError says how many numbers are right."""
    if None in map(numbers.get, key):
        print("Not solved yet: fill in the numbers above, run that cell, and then this one.")
    else:
        right = sum(fits(key, run, numbers[run]) for run in key)
        assert right == len(key), f"{right} of {len(key)} are right. {hint}"
        print("Correct.")
