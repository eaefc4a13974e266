"""The sampler that a script gives a data loader: how it samples, its fanouts and mask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dgl

from dgl_heta.distdgl.modules.group_merge import canonical
from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.session import Session
from dgl_heta.errors import several

BY_ITSELF = (
    "the script samples by itself, so what it trains on these blocks runs as plain DistDGL does, "
    "without RAF: each trainer reads all neighbours of its own seeds; for RAF let "
    "DistNodeDataLoader sample, by dgl.dataloading.NeighborSampler or a class derived from it "
    "whose sample_blocks calls super().sample_blocks")
"""The remedy for a script with a sampler of its own."""


@dataclass(frozen=True)
class Fanouts:
    """Numbers of neighbours that a script's sampler samples.

    Attributes
    ----------
    layers : input layer first, neighbours per node and relation, -1 for all: one number, or one per
        relation.
    mask : the name of edge data with 0 and 1, where edges with 0 are not sampled.
    """

    layers: list[Any]
    mask: str | None = None


def way_of(sampler: Any) -> str:
    """Return how a sampler samples.

    "known" is DGL's NeighborSampler as it is, "derived" a class of the script's that may call it,
    "own" one that samples by itself.

    Raises
    ------
    InputError
        It is another one of DGL's, which no DistGraph can be sampled by.
    """
    known = dgl.dataloading.NeighborSampler
    if not isinstance(sampler, known) or not hasattr(sampler, "fanouts"):
        if type(sampler).__module__.startswith("dgl."):
            refuse("sampler of another kind", sampler=type(sampler).__name__)
        return "own"
    # Compared on the class and looked for on the instance: a script may put a function on either.
    same = type(sampler).sample_blocks is known.sample_blocks
    return "known" if same and "sample_blocks" not in vars(sampler) else "derived"


def fanouts_of(sampler: Any, session: Session) -> Fanouts:
    """Return the fanouts of a NeighborSampler.

    Raises
    ------
    InputError
        It has an argument that cannot be used, or more layers than the partition has hops.
    """
    name = type(sampler).__name__
    if getattr(sampler, "replace", False):
        refuse("sampler with replace", sampler=name, value=sampler.replace)
    mask = getattr(sampler, "prob", None)
    if not isinstance(mask, str | None):
        refuse("sampler with prob", sampler=name, value=mask)
    for attribute in ("edge_dir", "prefetch_node_feats", "prefetch_labels", "prefetch_edge_feats"):
        if (given := getattr(sampler, attribute, None)) and given != "in":
            session.say(f"{name} with {attribute}={given!r} has no effect, as in plain DistDGL: a "
                        "DistGraph samples in-edges, and its loaders read no features")
    return Fanouts(layers_of(name, sampler.fanouts, session), mask)


def settings_of(sampler: Any) -> dict[str, Any]:
    """Return what a NeighborSampler samples by, to be compared with later."""
    return {
        "fanouts": [{**f} if isinstance(f, Mapping) else int(f) for f in sampler.fanouts],
        "prob": getattr(sampler, "prob", None), "replace": getattr(sampler, "replace", False),
        "sample_blocks": "DGL's" if way_of(sampler) == "known" else "the script's"}


def layers_of(sampler: str, fanouts: Iterable[Any], session: Session) -> list[Any]:
    """Return the layers of :class:`Fanouts`, from DGL's form (a number, or edge type → number).

    Raises
    ------
    InputError
        They are more than the partition has hops.
    """
    relations = session.store.schema.relations
    layers: list[Any] = []
    for fanout in fanouts:
        if isinstance(fanout, Mapping):
            layers.append({canonical(e, relations): int(f) for e, f in fanout.items()})
        else:
            # 0 as a number would be no fanout at all to our sampler; per relation it is one.
            layers.append(int(fanout) or dict.fromkeys(relations, 0))
    if len(layers) > session.plan.hops:
        refuse("more layers than hops", sampler=sampler, layers=several(len(layers), "layer"),
               hops=several(session.plan.hops, "hop"), wanted=several(len(layers), "hop"))
    return layers
