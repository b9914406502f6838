"""What Linux, macOS and Windows do in different ways: locks, signals, the size of the memory."""

import signal
import sys

import psutil

# Ctrl-C, a job scheduler's, a closed terminal's (Windows has none).
STOPS = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, n)]
LOOPBACK = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)  # Windows's has no such name
LOCKED = (BlockingIOError, PermissionError)  # POSIX's, Windows's


def lock(file):
    """Lock an open file until it is closed or the process dies; `LOCKED` if it is locked."""
    try:
        import fcntl
    except ImportError:
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def memory_size():
    """Bytes of the machine's memory."""
    return psutil.virtual_memory().total
