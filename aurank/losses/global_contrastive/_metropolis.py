"""Metropolis–Hastings chains over the references of a batch, all queries and all proposals at once.

A chain at a state of similarity c moves to proposal j where log U < (s_j − c)/τ, U uniform. As −log U is exponentially
distributed, that is where s_j + τ·Exp_j, how far the proposal reaches, is above c: which later proposal a chain accepts
next depends on where it is and on nothing before, so that the next state is found for every proposal at once, by
bisection in running maxima, and the chain's own path is marked among them by doubling its steps. Both take log₂ of the
number of proposals.
"""

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

# Of running maxima at a time; what else the chains of a chunk need is about as much. A GPU wants few large steps.
TABLE_BYTES = {"cpu": 2**24, "gpu": 2**28}


def rows_at_a_time(proposals: int, device: torch.device) -> int:
    """Return how many chains to run together, so that the work space stays below 64 MB (1 GB on a GPU)."""
    limit = TABLE_BYTES["cpu" if device.type == "cpu" else "gpu"]
    return max(1, limit // (4 * (proposals + 1) * proposals.bit_length()))


@torch.no_grad()
def occupancy(
    scores: Float[Tensor, "chain proposal"],
    start: Float[Tensor, " chain"],
    exponentials: Float[Tensor, "chain proposal"],
    wanted: Bool[Tensor, "chain proposal"],
    burn_in: Int64[Tensor, " chain"],
    *,
    temperature: float,
) -> tuple[Float[Tensor, "chain 1+proposal"], Int64[Tensor, " chain"]]:
    """Return how many kept steps each chain spent where, and where it ended: 0 is its start, j + 1 proposal j.

    Args:
        scores: similarity of each proposal, in the order in which they are made.
        start: that of the chain's first state; at minus infinity any first proposal is accepted.
        exponentials: −log U of each proposal.
        wanted: False is no proposal, and no step.
        burn_in: how many steps are not kept; a step ends when its proposal was accepted or not.
    """
    number = scores.shape[1]
    reach = torch.where(wanted, scores + temperature * exponentials, -torch.inf)
    following = next_above(reach, torch.cat([start[:, None], scores], dim=1))
    visited = path(following)
    # when a state is entered, in steps that count: proposals before the one that led there, `number` at the end
    steps = torch.nn.functional.pad(wanted.to(scores.dtype).cumsum(dim=1), (1, 0))
    steps = torch.maximum(steps, burn_in[:, None].to(scores.dtype))
    entered = torch.cat([steps[:, :1], steps[:, :-1]], dim=1)
    stayed = (steps.gather(1, following) - entered).masked_fill_(~visited, 0)
    last = (visited & (following == number)).to(torch.uint8).argmax(dim=1)
    return stayed, last


def next_above(
    values: Float[Tensor, "chain proposal"], levels: Float[Tensor, "chain 1+proposal"]
) -> Int64[Tensor, "chain 1+proposal"]:
    """Return for each j the first index from j on whose value is above level j; the number of values if none is."""
    number = values.shape[1]
    depth = number.bit_length()
    maxima = values.new_empty(depth, len(values), number + 1)  # maxima[h, :, p]: of the 2**h values from p on
    maxima[0, :, :number] = values
    maxima[0, :, number] = torch.inf  # the end, which no search goes beyond
    for height in range(1, depth):
        half = 2 ** (height - 1)
        torch.maximum(maxima[height - 1, :, :-half], maxima[height - 1, :, half:], out=maxima[height, :, :-half])
        maxima[height, :, -half:] = torch.inf
    place = torch.arange(number + 1, device=values.device).repeat(len(values), 1)
    for height in reversed(range(depth)):
        place.add_(maxima[height].gather(1, place) <= levels, alpha=2**height)
    return place


def path(following: Int64[Tensor, "chain node"]) -> Bool[Tensor, "chain node"]:
    """Return True at the nodes of a chain that starts at 0 and goes from j to following[j] + 1, to beyond the last.

    In blocks of about the square root of the number: first, for all blocks together, where a chain leaves its block,
    from its last node back to its first; then from block to block; then, for all together again, the steps within.
    """
    chains, size = following.shape
    width = 2 ** -(-(size - 1).bit_length() // 2)
    number = -(-size // width)
    end = number * width
    target = torch.nn.functional.pad(following + 1, (0, end - size), value=end)
    target.masked_fill_(target == size, end)
    blocks = target.view(chains, number, width)
    border = torch.arange(width, end + 1, width, device=following.device)  # where each block ends
    leaves = target.clone()
    for place in reversed(range(width - 1)):
        to = blocks[:, :, place]
        onward = leaves.gather(1, to.clamp(max=end - 1))
        leaves.view(chains, number, width)[:, :, place] = torch.where(to < border, onward, to)
    at = following.new_zeros(chains)
    entered = following.new_full((chains, number), end)
    for block in range(number):
        here = at < (block + 1) * width
        entered[:, block] = torch.where(here, at, end)
        at = torch.where(here, leaves.gather(1, at.clamp(max=end - 1)[:, None])[:, 0], at)
    visited = torch.empty_like(blocks, dtype=torch.bool)
    for place in range(width):
        here = entered == border - width + place
        visited[:, :, place] = here
        entered = torch.where(here, blocks[:, :, place], entered)
    return visited.view(chains, end)[:, :size]
