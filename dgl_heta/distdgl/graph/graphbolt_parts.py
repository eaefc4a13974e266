"""GraphBolt's form of DistDGL's parts (`use_graphbolt=True`), which meta-partitions do not have.

DGL asks for it at several doors. At each of them a meta-partitioned graph is refused by name;
with parts that DGL made, everything is DGL's own.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any

from dgl_heta.distdgl.state import state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import InputError
from dgl_heta.partition.directory import is_part_config
from dgl_heta.system.patching import patch_all


class _Asked:
    """What the last call of `dgl.distributed.initialize` in this process asked for.

    Attributes
    ----------
    graphbolt : whether it was `use_graphbolt`.
    """

    graphbolt = False


def no_graphbolt(what: str, part_config: Any) -> InputError:
    """The error for a door that a meta-partitioned graph came to."""
    return InputError(f"{what} cannot be used with {part_config}, a meta-partitioned graph: its "
                      "parts have no form for GraphBolt, trainers sample from the relation store; "
                      "leave it out (in dgl.distributed.initialize as well), or partition with "
                      "part_method='metis' for GraphBolt")


def check_graph(part_config: Any) -> None:
    """A meta-partitioned graph is opened, in a process that may have asked for GraphBolt.

    Raises
    ------
    InputError
        It has.
    """
    if state_of(_Asked).graphbolt:
        raise no_graphbolt("dgl.distributed.initialize(use_graphbolt=True)", part_config)


def _initialize(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialize(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        state_of(_Asked).graphbolt = bool(given.get("use_graphbolt", False))
        config = os.environ.get("DGL_CONF_PATH")
        if config is not None and is_part_config(config):
            check_graph(config)
        return original(*args, **kwargs)
    return initialize


def _server(original: Callable[..., Any]) -> Callable[..., Any]:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = inspect.signature(original).bind(self, *args, **kwargs).arguments
        if given.get("use_graphbolt") and is_part_config(given["part_config"]):
            raise no_graphbolt("DistGraphServer(use_graphbolt=True)", given["part_config"])
        original(self, *args, **kwargs)
    return __init__


def _to_graphbolt(original: Callable[..., Any]) -> Callable[..., Any]:
    def dgl_partition_to_graphbolt(part_config: str, *args: Any, **kwargs: Any) -> Any:
        if is_part_config(part_config):
            raise no_graphbolt("dgl_partition_to_graphbolt", part_config)
        return original(part_config, *args, **kwargs)
    return dgl_partition_to_graphbolt


def _part_to_graphbolt(original: Callable[..., Any]) -> Callable[..., Any]:
    def gb_convert_single_dgl_partition(*args: Any, **kwargs: Any) -> Any:
        config = inspect.signature(original).bind(*args, **kwargs).arguments["part_config"]
        if is_part_config(config):
            raise no_graphbolt("gb_convert_single_dgl_partition", config)
        return original(*args, **kwargs)
    return gb_convert_single_dgl_partition


PATCHES = (
    *patch_all(homes("initialize"), _initialize, "a meta-partition has no form for GraphBolt"),
    *patch_all(homes("DistGraphServer", "__init__"), _server,
               "a meta-partition has no form for GraphBolt"),
    *patch_all(homes("dgl_partition_to_graphbolt"), _to_graphbolt,
               "a meta-partition has no form for GraphBolt"),
    *patch_all(homes("part to GraphBolt"), _part_to_graphbolt,
               "a meta-partition has no form for GraphBolt"),
)
