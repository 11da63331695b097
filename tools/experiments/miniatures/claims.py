"""The cheap claims of the paper, measured; `rows.py` says what is made of them."""

from typing import Any

from miniatures import propositions, stability, starts


def measure() -> dict[str, Any]:
    """Propositions 1 and 3, the start of v, and P2."""
    return {
        "proposition_1": propositions.moving_average(),
        "proposition_3": propositions.interpolation_slopes(),
        "starts": starts.measure(),
        "stability": stability.measure(),
    }
