"""The scope of a data loader: its layers, its node types, and who samples which relation.

Nodes of the plan's targets are sampled by the plan. Nodes of other types can be sampled for one
layer, as programs do that compute the states of all nodes layer by layer. There every relation
belongs to one machine of the group, one that has it in the plan where there is such a machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.session import Session
from dgl_heta.errors import listing
from dgl_heta.graph.schema import Relation
from dgl_heta.sampling.sampling_scope import SamplingScope


@dataclass(frozen=True)
class LoaderScope:
    """The relations that this trainer samples for a data loader.

    Attributes
    ----------
    targets : node types that seeds may have, in the order in which trainers number them.
    sampling : the layers, and this machine's relations in each.
    planned : whether relations are where the plan has them.
    """

    targets: tuple[str, ...]
    sampling: SamplingScope
    planned: bool


def loader_scope(session: Session, ntypes: Iterable[str], layers: int) -> LoaderScope:
    """Return the scope of a data loader for some node types, once the trainers are connected."""
    plan = session.plan
    if {*ntypes} <= {*plan.targets}:
        return LoaderScope(plan.targets, SamplingScope.of(plan, session.part, layers), True)
    schema = session.store.schema
    targets = tuple(schema.node_types)
    into = {t: schema.into.get(t, ()) for t in targets}
    return LoaderScope(targets, replace(
        SamplingScope.of(plan, session.part, 1), targets=targets, roots={}, inner={1: ()},
        seed_relations=into, seeds_apart=False, replicated=False, common=frozenset(),
        on_common={1: _relations_here(session)}, merged={1: into}), False)


def check_types(session: Session, ntypes: Iterable[str], layers: int) -> None:
    """Check that seeds of these node types can be sampled for by so many layers.

    Raises
    ------
    InputError
        The graph has no such node type, or it is no target and there are several layers.
    """
    targets = session.plan.targets
    for ntype in ntypes:
        session.store.schema.check_node_type(ntype)
        if ntype not in targets and layers > 1:
            refuse("seeds of no target, in several layers", ntype=ntype, layers=layers,
                   targets=listing(targets))


def _relations_here(session: Session) -> tuple[Relation, ...]:
    """Return the relations that this partition samples for its group.

    Largest relations first, each by the least loaded partition among those that have it by plan; a
    relation that is cut by all that have pieces.
    """
    plan, schema = session.plan, session.store.schema
    load = dict.fromkeys(session.groups.members, 0)
    here = []
    for relation in sorted(schema.relations, key=lambda r: (-schema.edge_counts[r], r)):
        holders = [part for part in load if relation in plan.partitions[part].relations]
        if plan.replication == "full" or not holders:
            holders = [min(holders or load, key=load.__getitem__)]
        for part in holders:
            load[part] += schema.edge_counts[relation] // len(holders)
        if session.part in holders:
            here.append(relation)
    return tuple(here)
