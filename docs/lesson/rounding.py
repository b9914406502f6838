"""Numbers as the pages keep them."""

import math


def rounded(x):
    """Four digits of it; a text for what JSON does not have."""
    if isinstance(x, bool):
        return x
    if isinstance(x, int) or not math.isfinite(x):
        return x if isinstance(x, int) else str(x)
    return float(f"{x:.4g}")
