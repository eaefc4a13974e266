"""What a data loader samples: which layers, for which node types, each relation on which machine.

Nodes of the plan's targets are sampled by the plan. Nodes of other types can be sampled for one
layer, as programs do that compute the states of all nodes layer by layer. There every relation
belongs to one machine of the group, one that has it in the plan where there is such a machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import dgl

from dgl_heta.distdgl.modules.merging import canonical
from dgl_heta.distdgl.session import Session
from dgl_heta.errors import InputError, listing, several
from dgl_heta.graph.schema import Relation
from dgl_heta.planning.assignment import Share
from dgl_heta.sampling.sampling_scope import SamplingScope

BY_ITSELF = (
    "the script samples by itself, so what it trains on these blocks runs as plain DistDGL does, "
    "without RAF: each trainer reads all neighbours of its own seeds; for RAF let "
    "DistNodeDataLoader sample, by dgl.dataloading.NeighborSampler or a class derived from it "
    "whose sample_blocks calls super().sample_blocks")
"""What is said of a script with a sampler of its own."""


@dataclass(frozen=True)
class LoaderScope:
    """
    Attributes
    ----------
    targets : node types that seeds may have, in the order in which trainers number them.
    planned : whether relations are where the plan has them.
    """

    targets: tuple[str, ...]
    scope: SamplingScope
    planned: bool


def loader_scope(session: Session, ntypes: Iterable[str], layers: int) -> LoaderScope:
    """The scope of a data loader for nodes of some types, once the trainers are connected."""
    plan = session.plan
    if {*ntypes} <= {*plan.targets}:
        return LoaderScope(plan.targets, SamplingScope.of(plan, session.part, layers), True)
    schema = session.store.schema
    targets = tuple(schema.node_types)
    mine = {relation: Share() for relation, part in _places(session).items()
            if part == session.part}
    return LoaderScope(targets, SamplingScope(
        targets, 1, mine, {1: ()}, {t: schema.into.get(t, ()) for t in targets}), False)


def check_types(session: Session, ntypes: Iterable[str], layers: int) -> None:
    """
    Raises
    ------
    InputError
        The graph has no such node type, or it is no target and there are several layers.
    """
    targets = session.plan.targets
    for ntype in ntypes:
        session.store.schema.check_node_type(ntype)
        if ntype not in targets and layers > 1:
            raise InputError(
                f"the data loader is for nodes of type '{ntype}' and {layers} layers, but the "
                f"graph was partitioned for the target {listing(targets)}; partition it with "
                f"target '{ntype}', or compute the states of all nodes layer by layer")


def _places(session: Session) -> dict[Relation, int]:
    """Relation → the partition of this group that samples it; all trainers find the same."""
    plan, schema = session.plan, session.store.schema
    load = dict.fromkeys(session.groups.members, 0)
    found = {}
    for relation in sorted(schema.relations, key=lambda r: (-schema.edge_counts[r], r)):
        holders = [part for part in load if relation in plan.partitions[part].relations]
        found[relation] = min(holders or load, key=load.__getitem__)
        load[found[relation]] += schema.edge_counts[relation]
    return found


def way_of(sampler: Any) -> str:
    """How a sampler samples: "known" (DGL's NeighborSampler as it is), "derived" (a class of the
    script's that may call it) or "own".

    Raises
    ------
    InputError
        It is another one of DGL's, which no DistGraph can be sampled by.
    """
    known = dgl.dataloading.NeighborSampler
    if not isinstance(sampler, known) or not hasattr(sampler, "fanouts"):
        if type(sampler).__module__.startswith("dgl."):
            raise InputError(f"sampler {type(sampler).__name__} cannot be used on a "
                             "meta-partitioned graph, nor on a DistGraph of plain DGL; use "
                             "dgl.dataloading.NeighborSampler (MultiLayerNeighborSampler) or "
                             "MultiLayerFullNeighborSampler")
        return "own"
    same = type(sampler).sample_blocks is known.sample_blocks
    return "known" if same and "sample_blocks" not in vars(sampler) else "derived"


def fanouts_of(sampler: Any, session: Session) -> list[Any]:
    """Fanouts of a NeighborSampler, input layer first, or an InputError that it cannot be used."""
    name = type(sampler).__name__
    if getattr(sampler, "replace", False):
        raise InputError(f"{name} with replace={sampler.replace!r} cannot be used on a "
                         "meta-partitioned graph; leave it out")
    if not isinstance(getattr(sampler, "prob", None), str | None):
        raise InputError(f"{name} with prob={sampler.prob!r} cannot be used on a meta-partitioned "
                         "graph; give the name of edge data with 0 and 1 (mask=)")
    for attribute in ("edge_dir", "prefetch_node_feats", "prefetch_labels", "prefetch_edge_feats"):
        if (given := getattr(sampler, attribute, None)) and given != "in":
            session.say(f"{name} with {attribute}={given!r} has no effect, as in plain DistDGL: a "
                        "DistGraph samples in-edges, and its loaders read no features")
    fanouts: list[Any] = []
    relations = session.store.schema.relations
    for fanout in sampler.fanouts:
        if isinstance(fanout, Mapping):
            fanouts.append({canonical(e, relations): int(f) for e, f in fanout.items()})
        else:
            fanouts.append(int(fanout) or dict.fromkeys(relations, 0))
    check_depth(name, len(fanouts), session.plan.hops)
    return fanouts


def check_depth(name: str, layers: int, hops: int) -> None:
    """Refuse to sample more layers than a graph was partitioned for."""
    if layers > hops:
        raise InputError(f"{name} samples {several(layers, 'layer')}, but the graph was "
                         f"partitioned for {several(hops, 'hop')}; partition it with "
                         f"{several(layers, 'hop')} (model.layers in the settings, or --hops)")
