"""What Linux, macOS and Windows do in different ways: locks, signals, the size of the memory."""

import signal
import sys

import psutil

# Ctrl-C, a job scheduler's, a closed terminal's (Windows has none).
STOPS = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)]
LOOPBACK = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)  # Windows's has no such name


def lock(file):
    """Lock an open file until it is closed or the process dies; BlockingIOError if it is locked."""
    try:
        import fcntl
    except ImportError:
        lock_on_windows(file)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def lock_on_windows(file):
    import msvcrt

    try:
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    except PermissionError as error:
        raise BlockingIOError(*error.args) from None


def memory_size():
    """Bytes of the machine's memory."""
    return psutil.virtual_memory().total
