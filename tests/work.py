"""Bounds on the work of a call that do not depend on what else the machine does."""

import time


def light(function, *args):
    """The result of a call that takes at most as long as 30 runs of a fixed job beside it.

    That is about a second of an idle core. Other programs slow the call and the job alike. Of three
    tries one must be light.
    """
    for _ in range(3):
        result, took = timed(function, *args)
        if took < 0.1 or took < 30 * timed(sum, map(int.bit_length, range(2_000_000)))[1]:
            return result
    raise AssertionError(f"much work: {args!s:.200}")


def timed(function, *args):
    start = time.process_time()
    result = function(*args)
    return result, time.process_time() - start
