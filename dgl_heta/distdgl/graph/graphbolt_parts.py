"""GraphBolt's form of DistDGL's parts (`use_graphbolt=True`), which meta-partitions do not have.

DGL asks for it at several entry points. At each of them a meta-partitioned graph is refused by
name; with parts that DGL made, everything is DGL's own.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.state import state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.partition.directory import is_part_config
from dgl_heta.system.patching import patch_all


class _Asked:
    """The request of this process's last `dgl.distributed.initialize`.

    Attributes
    ----------
    graphbolt : whether it was `use_graphbolt`.
    """

    graphbolt = False


def no_graphbolt(what: str, part_config: Any) -> NoReturn:
    """Refuse a meta-partitioned graph at one of the entry points."""
    refuse("parts in GraphBolt's form", what=what, part_config=part_config)


def check_graph(part_config: Any) -> None:
    """Check that this process, which opens a meta-partitioned graph, has not asked for GraphBolt.

    Raises
    ------
    InputError
        It has.
    """
    if state_of(_Asked).graphbolt:
        no_graphbolt("dgl.distributed.initialize(use_graphbolt=True)", part_config)


def _initialize(original: Callable[..., Any]) -> Callable[..., Any]:
    def initialize(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs).arguments
        state_of(_Asked).graphbolt = bool(given.get("use_graphbolt", False))
        config = os.environ.get("DGL_CONF_PATH")
        if config is not None and is_part_config(config):
            check_graph(config)
        return original(*args, **kwargs)
    return initialize


def _refusing(what: str, asked: Callable[[Mapping[str, Any]], bool] = lambda given: True
              ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return what makes a patch that refuses meta-partitions, where GraphBolt is `asked` for."""
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def patched(*args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(original).bind(*args, **kwargs).arguments
            if asked(given) and is_part_config(given["part_config"]):
                no_graphbolt(what, given["part_config"])
            return original(*args, **kwargs)
        return patched
    return make


_WHY = "a meta-partition has no form for GraphBolt"
PATCHES = (
    *patch_all(homes("initialize"), _initialize, _WHY),
    *patch_all(homes("DistGraphServer", "__init__"), _refusing(
        "DistGraphServer(use_graphbolt=True)", lambda given: bool(given.get("use_graphbolt"))),
        _WHY),
    *patch_all(homes("dgl_partition_to_graphbolt"), _refusing("dgl_partition_to_graphbolt"), _WHY),
    *patch_all(homes("part to GraphBolt"), _refusing("gb_convert_single_dgl_partition"), _WHY),
)
