"""`dgl_heta.partition_graph`: the call of `dgl.distributed.partition_graph`, with more methods.

This is an adapter: it imports dgl.
"""

from __future__ import annotations

import inspect
import math
import numbers
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.graph.source import TRAIN_MASK, GraphSource
from dgl_heta.hooks.manager import Plugins, plugins
from dgl_heta.hooks.protocols import PartitionBackend
from dgl_heta.partition.arguments import (
    CONVERSION,
    FORMER,
    check_names,
    flag,
    shown,
    warn_once,
    whole,
)
from dgl_heta.partition.request import PartitionResult, make_request
from dgl_heta.planning.workload import DEFAULT_HOPS, MODELS, Workload
from dgl_heta.settings import Origin, load_settings
from dgl_heta.system.patching import plain
from dgl_heta.system.remote_files import check_on_disk

DGL_METHODS = ("metis", "random")

OWN = ("target_ntype", "metapaths", "hops", "seed", "replication", "memory_mb", "cut",
       "hubs", "shared", "model")
"""Arguments that only the methods of dgl-heta have; None where a call does not give them."""

_WORDS = {"method": "part_method", "parts": "num_parts", "target": "target_ntype"}
# Without it, importing dgl writes a file into the home directory, which may be read-only.
os.environ.setdefault("DGLBACKEND", "pytorch")


def partition_graph(
    g: Any,
    graph_name: str,
    num_parts: int | str,
    out_path: str,
    num_hops: int | None = None,
    part_method: str = "metis",
    balance_ntypes: Any = None,
    balance_edges: bool = False,
    return_mapping: bool = False,
    num_trainers_per_machine: int = 1,
    objtype: str = "cut",
    graph_formats: Any = None,
    use_graphbolt: bool = False,
    *,
    target_ntype: str | Sequence[str] | None = None,
    metapaths: Any = None,
    hops: int | None = None,
    seed: int | None = None,
    replication: str | None = None,
    memory_mb: float | None = None,
    cut: str | None = None,
    hubs: float | None = None,
    shared: str | None = None,
    model: str | None = None,
    overwrite: bool = True,
    settings: Iterable[str] = (),
    **dgl_arguments: Any,
) -> Any:
    """Partition a DGLGraph as `dgl.distributed.partition_graph` does, or by meta-partitioning.

    Methods of DGL go to DGL with all their arguments. The methods of dgl-heta (`meta`, and
    those of plugins) write a relation store and a plan in `out_path`, with DistDGL's
    part_config `<graph_name>.json` beside them. DGL's own name does the same while dgl-heta is
    enabled, with the same rules for every argument (docs/switching.md); there settings win.

    Parameters
    ----------
    num_parts : number of partitions, or "auto" for methods that decide it themselves.
    target_ntype : target node type or types, for `meta` and its like; default: the only type, or
        the only one with a `train_mask`, or the ends of the relations with one. Without its labels
        and train mask the graph is partitioned, but `dgl-heta train` has no task.
    num_hops : for methods that make halo nodes, DGL's among them, the hops of these (default 1).
        For `meta` and its like 2 or more is the plan's depth, unless `hops` says it. 1 is DGL's
        default, which scripts give for halo nodes: it says nothing of the depth.
    hops : depth of the metatree, the number of layers of the model; default: `num_hops` from 2
        on, else the length of the longest metapath, else 2.
    metapaths : a list of metapaths, each a list of relations in edge direction.
    seed : for methods that draw at random (default 0).
    replication : full, none, or (default) the method's own.
    memory_mb : MB that a partition may hold, as predicted.
    cut : the cutter of relations that are too large for a partition, without replication.
    hubs : the setting `partition.hubs` (default 1; 0: no node's in-edges are cut).
    shared : whether rows of learnable features that several partitions read move (rows), or one
        partition aggregates them for the others (delegate); auto (default): whichever is expected
        to send fewer bytes.
    model : rgcn (default), rgat or hgt: the kind of model whose bytes `shared` compares; with
        attention the states of destinations are sent, too.
    overwrite : whether an earlier partition in `out_path` is replaced, as DGL does. What holds
        anything else is left alone in any case, with an error.
    settings : settings of plugins, as by `--set`: "plugins.NAME.key=value".
    return_mapping : whether to return the original ids. `meta` and its like do not change them.
    balance_ntypes, balance_edges, num_trainers_per_machine, objtype, graph_formats,
    use_graphbolt, **dgl_arguments : go to DGL, and to methods that honour them. For others
        values are checked, and right ones that have no effect are named in a warning;
        `use_graphbolt=True` is refused. Of `**dgl_arguments` unknown names are refused.

    Returns
    -------
    What DGL returns; for methods of dgl-heta nothing, or with `return_mapping` the original
    node and edge ids per type.

    Raises
    ------
    InputError
        Unknown method, target or argument, a wrong value, data that DGL could not partition
        either, an `out_path` that is not to be overwritten.
    """
    given = dict(locals())  # nothing but the arguments is there yet
    return perform(given | given.pop("dgl_arguments"), None)


def arguments_of(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """The arguments of a call of :func:`partition_graph` by name, defaults included.

    Raises
    ------
    TypeError
        One is missing, or given twice.
    """
    bound = inspect.signature(partition_graph).bind(*args, **kwargs)
    bound.apply_defaults()
    given = dict(bound.arguments)
    return given | given.pop("dgl_arguments")


def perform(given: Mapping[str, Any], original: Callable[..., Any] | None,
            shared_origin: Origin = Origin.DEFAULT) -> Any:
    """Partition as the arguments of :func:`partition_graph` say, by name.

    Parameters
    ----------
    original : DGL's own function where DGL's name is patched.
    shared_origin : who asked for `shared`, if it was not the script.
    """
    if given["part_method"] in DGL_METHODS:
        import dgl.distributed

        return _by_dgl(original or plain(dgl.distributed.partition_graph), given)
    if given["shared"] is not None and not shared_origin.asked:
        shared_origin = Origin.ARGUMENT
    return _by_backend(shared_origin=shared_origin, **given)


def _by_dgl(original: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    given = dict(given)
    overrides, replace = list(given.pop("settings")), flag("overwrite", given.pop("overwrite"))
    idle = {name: given.pop(name) for name in OWN}
    for name, there in ({n: value is not None for n, value in idle.items()}
                        | {"settings": bool(overrides), "overwrite=False": not replace}).items():
        if there:
            raise InputError(f"{name} goes with the methods of dgl-heta (part_method='meta'), not "
                             f"with '{given['part_method']}'")
    known = [name for name in (*_names(), *_of_conversion()) if name not in OWN]
    unknown = [name for name in given if name not in known]
    if unknown and given["use_graphbolt"]:
        check_names(f"part_method='{given['part_method']}'", unknown, known)
    if unknown:
        warn_once(f"{listing(repr(name) for name in unknown)}: no argument of "
                  "dgl.distributed.partition_graph, which ignores it"
                  + nearest(unknown[0], known))
    if given["num_hops"] is None:
        given["num_hops"] = 1
    return original(**given)


def _of_conversion() -> list[str]:
    """Arguments of `dgl_partition_to_graphbolt` in the installed DGL."""
    from dgl.distributed import dgl_partition_to_graphbolt

    names = inspect.signature(plain(dgl_partition_to_graphbolt)).parameters
    return [name for name in names if name not in ("part_config", "graph_formats")]


def _by_backend(g: Any, graph_name: str, num_parts: int | str, out_path: str,
                num_hops: int | None, part_method: str, return_mapping: bool, target_ntype: Any,
                metapaths: Any, hops: int | None, seed: int | None, replication: str | None,
                memory_mb: float | None, cut: str | None, hubs: float | None, shared: str | None,
                shared_origin: Origin, model: str | None, overwrite: bool,
                settings: Iterable[str], **script: Any) -> Any:
    from dgl_heta.graph.readers.dgl_graph import check_graph

    check_graph(g)
    _check_texts(graph_name, part_method, out_path)
    registry = _configured(settings)
    backend: PartitionBackend = registry.get("partition backend", part_method)
    check_names(f"part_method='{part_method}'", script,
                {*_names(), *CONVERSION, *FORMER} | backend.honours)
    mapping, replace = flag("return_mapping", return_mapping), flag("overwrite", overwrite)
    depth = _depth(backend, num_hops, hops, metapaths)
    targets = _targets(g, target_ntype, backend)
    source = _source(g, graph_name, targets)
    request = make_request(
        backend, source.schema(),
        num_parts if isinstance(num_parts, str) else whole("num_parts", num_parts),
        targets, hops=depth, metapaths=metapaths, edge_ids=True,
        seed=0 if seed is None else whole("seed", seed, least=0),
        replication=replication, memory_mb=_megabytes(memory_mb),
        cutter=None if cut is None else registry.get("cutter", cut),
        hubs=1.0 if hubs is None else _hubs(hubs), shared=shared, shared_origin=shared_origin,
        workload=Workload(model=_model(model), in_script=True),
        script={"num_hops": 1 if num_hops is None else num_hops, **script},
        word=lambda name: _WORDS.get(name, name))
    out = Path(out_path)
    result = backend.partition(source, request, out, overwrite=replace)
    return _mapping(g, result) if mapping else None


def _hubs(given: Any) -> float:
    number = isinstance(given, numbers.Real) and not isinstance(given, bool)
    if not number or not 0 <= float(given) < math.inf:
        raise InputError(f"hubs is {shown(given)}; it must be a number, 0 or more")
    return float(given)


def _model(name: Any) -> str:
    if name not in (None, *MODELS):
        raise InputError(f"model is {shown(name)}; it must be one of {', '.join(MODELS)}")
    return name or Workload.model


def _names() -> list[str]:
    """The names of all arguments of :func:`partition_graph` that it names."""
    return [name for name, parameter in inspect.signature(partition_graph).parameters.items()
            if parameter.kind is not parameter.VAR_KEYWORD]


def _check_texts(graph_name: Any, part_method: Any, out_path: Any) -> None:
    for name, text in (("graph_name", graph_name), ("part_method", part_method)):
        if not isinstance(text, str):
            raise InputError(f"{name} is {shown(text)}; it must be a text")
    if not isinstance(out_path, str | os.PathLike):
        raise InputError(f"out_path is {shown(out_path)}; it must be the path of a directory")
    check_on_disk(os.fspath(out_path), "out_path")


def _configured(overrides: Iterable[str]) -> Plugins:
    """The providers, with a call's settings of plugins over those in force."""
    registry, overrides = plugins(), [overrides] if isinstance(overrides, str) else list(overrides)
    for text in overrides:
        if not str(text).strip().startswith("plugins."):
            raise InputError(f"settings has {shown(text)}, which has no effect on one call; "
                             "it takes settings of plugins: 'plugins.NAME.key=value'")
    if not overrides:
        return registry
    given = {key: section.model_dump(exclude_unset=True)
             for key, section in registry.sections().items()}
    return registry.configured(load_settings(None, overrides, base={
        "plugins": {key: values for key, values in given.items() if values}}))


def _depth(backend: PartitionBackend, num_hops: Any, hops: Any, metapaths: Any) -> int | None:
    """The depth that a call asks for; None for the longest metapath's, or the default."""
    depth = None if hops is None else whole("hops", hops)
    if num_hops is None or whole("num_hops", num_hops) == depth or "num_hops" in backend.honours:
        return depth
    if depth is None and num_hops > 1:
        return int(num_hops)
    plan = (f"its plan has {depth or DEFAULT_HOPS} hops" if depth or metapaths is None
            else "its plan is as deep as the longest metapath")
    warn_once(f"num_hops={num_hops} has no effect on part_method='{backend.name}', which makes no "
              f"halo nodes: {plan}; a model's number of layers is `hops`, or model.layers in the "
              "settings")
    return depth


def _targets(g: Any, given: Any, backend: PartitionBackend) -> tuple[str, ...]:
    if given is not None:
        types = (given,) if isinstance(given, str) else given
        if not isinstance(types, Sequence) or not all(isinstance(t, str) for t in types):
            raise InputError(f"target_ntype is {shown(given)}; it must be a node type, or a list "
                             f"of them; node types: {listing(g.ntypes)}")
        return tuple(types)
    if len(g.ntypes) == 1:
        return tuple(g.ntypes)
    if not backend.needs_target:
        return ()
    masked = [t for t in g.ntypes if TRAIN_MASK in g.nodes[t].data]
    if not masked:  # edges to train on: their ends
        ends = {t for src, etype, dst in g.canonical_etypes for t in (src, dst)
                if TRAIN_MASK in g.edges[src, etype, dst].data}
        if ends:
            return tuple(t for t in g.ntypes if t in ends)
    if len(masked) != 1:
        raise InputError(f"part_method='{backend.name}' needs target_ntype, the node type to train "
                         "for (with a file of settings, set partition.target): no type, or more "
                         f"than one, has a {TRAIN_MASK}; node types: {listing(g.ntypes)}")
    return tuple(masked)


def _megabytes(given: Any) -> float | None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, numbers.Real)):
        raise InputError(f"memory_mb is {shown(given)}; it must be a number above 0")
    return None if given is None else float(given)


def _source(g: Any, name: str, targets: tuple[str, ...]) -> GraphSource:
    """The graph as it is, with a task if its only target has labels, of classes, and a train mask.
    """
    from dgl_heta.graph.readers import read_dgl_graph

    data = g.nodes[targets[0]].data if len(targets) == 1 and targets[0] in g.ntypes else {}
    labelled = {"label", "labels"} & set(data) and TRAIN_MASK in data
    return read_dgl_graph(g, name, target=targets[0] if labelled else None, as_given=True)


def _mapping(g: Any, result: PartitionResult) -> Any:
    """Original ids by new ids, in DGL's form: per type, or where there is one, its tensor."""
    import torch

    def ids(maps: Mapping[Any, Any] | None, counts: dict[Any, int]) -> Any:
        return {kind: torch.arange(count) if maps is None else torch.as_tensor(maps[kind])
                for kind, count in counts.items()}

    nodes = ids(result.nodes, {t: g.num_nodes(t) for t in g.ntypes})
    edges = ids(None if result.edges is None else {tuple(r): m for r, m in result.edges.items()},
                {e: g.num_edges(e) for e in g.canonical_etypes})
    if len(nodes) == 1 == len(edges):
        return next(iter(nodes.values())), next(iter(edges.values()))
    return nodes, edges
