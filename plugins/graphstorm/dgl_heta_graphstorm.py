"""GraphStorm's commands on meta-partitioned graphs: its HeteroGraphConv, what its command line
cannot do there, named when its arguments are read, and where it looks for the ids of nodes."""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
from types import ModuleType
from typing import Any

from dgl_heta import InputError, Program, hookimpl
from dgl_heta.tools import listing

log = logging.getLogger("dgl_heta")
RELEASES = ("0.5.0.post1",)
"""Releases of GraphStorm that the tests run with."""
ENCODERS = ("rgcn", "rgat", "hgt")
_REFUSED = {
    "construct_feat_ntype": "its sampler asks the servers for neighbours, which have none",
    "use_graphbolt": "a meta-partition has no form for GraphBolt",
    "use_wholegraph_embed": "features and embeddings are where the plan has them",
    "node_lm_configs": "language models were not tried",
    "distill_lm_configs": "language models were not tried",
    "use_pseudolabel": "it was not tried",
    "multi_tasks": "it was not tried",
    "decoder_edge_feat": "it was not tried",
    "lp_edge_weight_for_loss": "it was not tried",
    "train_etypes_negative_dstnode": "it was not tried",
    "eval_etypes_negative_dstnode": "it was not tried",
}
"""Options that must be left out, and why."""
NEGATIVES = ("uniform", "joint", "inbatch_joint", "localuniform", "localjoint")
"""Negative samplers of link prediction. With others GraphStorm has data loaders or samplers of its
own, which ask the servers for neighbours."""


WITH_EDGE_FEATURES = ("rgcn",)
"""Encoders that may be given `edge_feat_name`; GraphStorm itself refuses RGAT."""


def adapt_arguments(module: ModuleType) -> None:
    """Let GraphStorm check its arguments for a meta-partitioned graph, too."""
    release = importlib.metadata.version("graphstorm")
    if release not in RELEASES:
        log.warning("graphstorm %s is installed; meta-partitioned graphs were tried with %s, and "
                    "others may differ", release, listing(RELEASES))
    config: Any = module.GSConfig
    config.verify_arguments = _checked(config.verify_arguments)
    for name in ("node_id_mapping_file", "edge_id_mapping_file"):
        setattr(config, name, _mapping(getattr(config, name), f"{name.partition('_')[0]}_mapping"))


def _checked(original: Any) -> Any:
    @functools.wraps(original)
    def verify_arguments(self: Any, is_train: bool) -> Any:
        from dgl_heta.tools import is_part_config

        if is_part_config(self.part_config):
            check(self)
        return original(self, is_train)
    return verify_arguments


def check(config: Any) -> None:
    """
    Raises
    ------
    InputError
        An option of GraphStorm cannot work on a meta-partitioned graph.
    """
    for name, why in _REFUSED.items():
        if getattr(config, f"_{name}", None):
            raise InputError(f"GraphStorm's {name} cannot be used on a meta-partitioned graph: "
                             f"{why}; leave it out")
    # Its properties check and log when they are read; what was given is in the private attributes.
    method = getattr(config, "_training_method", None) or {"name": "default"}
    if method["name"] != "default":
        raise InputError(f"GraphStorm's training_method {method['name']} cannot be used on a "
                         "meta-partitioned graph: it was not tried; use default")
    negatives = getattr(config, "_train_negative_sampler", NEGATIVES[0])
    if negatives not in NEGATIVES:
        raise InputError(f"GraphStorm's train_negative_sampler {negatives} cannot be used on a "
                         f"meta-partitioned graph; use {listing(NEGATIVES)}")
    encoder = getattr(config, "_model_encoder_type", None)
    if encoder not in ENCODERS:
        raise InputError(f"GraphStorm's model_encoder_type {encoder} cannot be used on a "
                         f"meta-partitioned graph; use {listing(ENCODERS)}")
    if getattr(config, "_gnn_norm", None) == "batch":
        raise InputError("GraphStorm's gnn_norm batch cannot be used on a meta-partitioned graph: "
                         "the rows of a layer are not those of one trainer's batch; use layer, or "
                         "leave it out")
    if getattr(config, "_edge_feat_name", None) and encoder not in WITH_EDGE_FEATURES:
        raise InputError("GraphStorm's edge_feat_name cannot be used on a meta-partitioned graph "
                         f"with model_encoder_type {encoder}; use "
                         f"{listing(WITH_EDGE_FEATURES)}, or leave it out")


def _mapping(original: Any, name: str) -> Any:
    """Where ids were relabelled, a file says how; dgl-heta relabels none, and GraphStorm looks
    into DGL's directories of parts for it."""
    def get(self: Any) -> Any:
        from dgl_heta.tools import is_part_config

        if is_part_config(self.part_config):
            path = os.path.join(os.path.dirname(self.part_config), f"{name}.pt")
            return path if os.path.isfile(path) else None
        return original.fget(self)
    return property(get, doc=original.__doc__)


def adapt_encoders(module: ModuleType) -> None:
    """Let GraphStorm's own HeteroGraphConv merge relations over the machines."""
    from dgl_heta import register_hetero_conv

    register_hetero_conv(module.HeteroGraphConv, keys="canonical")


class GraphStorm(Program):
    """GraphStorm; docs/graphstorm.md says what it can do on meta-partitioned graphs."""

    name = "graphstorm"
    modules = {
        "graphstorm.config.argument": adapt_arguments,
        "graphstorm.model.gnn_encoder_base": adapt_encoders,
    }


@hookimpl
def dgl_heta_programs() -> list[Program]:
    return [GraphStorm()]
