"""Fanouts: how many in-edges of a node are sampled, per relation and layer.

Settings, options, workloads and samplers take them, input layer first; this is where they are read
and checked for all of these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dgl_heta.errors import InputError, several

ALL = -1
"""The fanout that takes all neighbours."""

LARGEST = 2**31
"""Fanouts of settings are below it."""


def default_fanouts(layers: int) -> tuple[int, ...]:
    """Neighbours per relation and layer where none are given: 25, then 20; input layer first."""
    return (25, *[20] * (layers - 1))


def wrong_fanout(fanout: int, least: int = 1, below: int | None = None) -> str | None:
    """Why a number is no fanout, or None if it is one.

    Parameters
    ----------
    least : 0 where a layer names relations, as it may leave one out; else 1.
    below : the first number that is too large, if there is a limit.
    """
    if fanout == ALL or (fanout >= least and (below is None or fanout < below)):
        return None
    limit = "" if below is None else f" and below 2^{below.bit_length() - 1}"
    return f"a fanout is {least} or more{limit}, or -1 for all neighbours"


def check_layers(fanouts: Sequence[Any], layers: int, name: str, layered: str) -> None:
    """Check that there is a fanout, or a choice of them by relation, for each layer.

    Parameters
    ----------
    name : what has the fanouts: "train.fanouts".
    layered : what has the layers: "model.layers is 2".

    Raises
    ------
    InputError
        There are more, or fewer.
    """
    if len(fanouts) != layers:
        raise InputError(f"{name} has {several(len(fanouts), 'number')}, but {layered}; give one "
                         "fanout per layer, input layer first")


def parse_fanouts(text: str, layers: int, name: str) -> tuple[int, ...]:
    """The fanouts of an option's text, such as "25,20".

    Raises
    ------
    InputError
        Something that is no number, or no fanout; or not one per layer.
    """
    try:
        fanouts = tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"{name} is '{text}'; write numbers, for example 25,20") from None
    check_layers(fanouts, layers, name,
                 f"there {'is' if layers == 1 else 'are'} {several(layers, 'hop')}")
    for fanout in fanouts:
        if why := wrong_fanout(fanout):
            raise InputError(f"{name} has {fanout}; {why}")
    return fanouts
