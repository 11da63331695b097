"""How many processes were launched for this command."""

import os

_NEEDED = ("RANK", "MASTER_ADDR")  # which a launcher sets for each process; a bare WORLD_SIZE may be of something else


def launched() -> int:
    """Return how many processes torchrun, Accelerate or a script launched to join; 1 for one by itself.

    Example:
        >>> launched()
        1
    """
    return int(os.environ.get("WORLD_SIZE", "1")) if all(name in os.environ for name in _NEEDED) else 1
