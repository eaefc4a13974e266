"""Which neighbours are drawn, by operators of PyTorch: the numbers of the compiled CPU sampler.

A node's neighbours are a hash of a key and of the node (dgl_heta/sampling/sampling_kernels.py), so
they can be drawn anywhere. The hash is of unsigned 64-bit numbers. Here they are int64, whose sums
and products wrap around to the same bits; shifts and remainders are made those of unsigned numbers.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def signed(number: int) -> int:
    """The int64 with the bits of an unsigned number."""
    number &= MASK
    return number - (1 << 64) if number >> 63 else number


def mix(values: Tensor) -> Tensor:
    """The finaliser of SplitMix64 (Steele, Lea and Flood 2014)."""
    values = (values ^ _shifted(values, 30)) * signed(FIRST)
    values = (values ^ _shifted(values, 27)) * signed(SECOND)
    return values ^ _shifted(values, 31)


def remainder(values: Tensor, by: Tensor) -> Tensor:
    """Of unsigned numbers by positive ones below 2^62.

    Half of a number is no negative one; what its quotient, doubled, leaves is less than twice `by`.
    """
    halves = torch.div(_shifted(values, 1), by, rounding_mode="floor")
    left = values - 2 * halves * by
    return torch.where(left >= by, left - by, left)


def _shifted(values: Tensor, bits: int) -> Tensor:
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def choose(keys: Tensor, nodes: Tensor, degrees: Tensor, fanouts: Tensor, most: int) -> Tensor:
    """For each node numbers below its degree without replacement, in the order of Floyd's sample
    (Bentley and Floyd 1987): (nodes, most), of which the first `fanout` of a node count.

    Those of a node with no more edges than its fanout mean nothing. `most` is the largest fanout.

    In step k Floyd draws one of the numbers up to `top` = degree - fanout + k and takes `top` if
    that is taken already. Drawn numbers are always taken afterwards. So a number is taken if it was
    drawn before, or if it was the `top` of an earlier step whose own was taken. The steps so form
    chains, which are followed by doubling: in log2(most) rounds, not in `most` steps.
    """
    places = torch.arange(most, device=nodes.device)
    states = mix(keys ^ (nodes * signed(GOLDEN)))
    lows = (degrees - fanouts).clamp(min=0)[:, None]
    tops = lows + places
    drawn = remainder(mix(states[:, None] + (places + 1) * signed(GOLDEN)), tops + 1)
    ordered, order = drawn.sort(dim=1, stable=True)
    again = torch.zeros_like(drawn, dtype=torch.bool)
    again[:, 1:] = ordered[:, 1:] == ordered[:, :-1]
    taken = torch.zeros_like(again).scatter_(1, order, again)
    earlier = drawn - lows  # the step whose top was drawn
    earlier = torch.where((earlier >= 0) & (earlier < places), earlier, places)
    for _ in range(math.ceil(math.log2(max(most, 2)))):
        taken = taken | taken.gather(1, earlier)
        earlier = earlier.gather(1, earlier)
    return torch.where(taken, tops, drawn)
