"""`dgl.distributed.partition_graph` by the selected method."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dgl_heta.distdgl.refusals import refuse
from dgl_heta.distdgl.state import selected, state_of
from dgl_heta.distdgl.versions import homes
from dgl_heta.errors import several
from dgl_heta.partition.arguments import shown, warn_once
from dgl_heta.partition.dgl import DGL_METHODS, OWN, arguments_of, perform
from dgl_heta.partition.directory import is_partition
from dgl_heta.planning.workload import MODELS
from dgl_heta.settings import Settings
from dgl_heta.system.patching import patch_all


def partition(original: Callable[..., Any], settings: Settings, /, *args: Any, **kwargs: Any
              ) -> Any:
    """Partition a graph as the script says, and the settings where they say more.

    Parameters
    ----------
    original : DGL's own function.
    settings : what they name themselves wins over the script's arguments.
    """
    given = _decided(settings, arguments_of(*args, **kwargs))
    ours = given["part_method"] not in DGL_METHODS
    # A program that says `overwrite` itself has decided; the command's option is for all others.
    if ours and "overwrite" not in kwargs:
        state_of(_Earlier).check(given["out_path"])
    result = perform(given, original, settings.origin("partition.shared"))
    if ours:
        out = given["out_path"]
        state_of(_Earlier).written.add(Path(out).resolve())
        print(f"{several(given['num_parts'], 'partition')} of {given['graph_name']} by "
              f"{given['part_method']} in {out}; `dgl-heta inspect {out}` shows them", flush=True)
    return result


class _Earlier:
    """Partitions of before this program, which it replaces, or only if it was asked to.

    Attributes
    ----------
    kept : whether they are not to be replaced.
    written : directories of the partitions that this program has written.
    """

    def __init__(self) -> None:
        self.kept = False
        self.written: set[Path] = set()

    def check(self, out: Any) -> None:
        """Check that a partition may be written to a directory.

        Raises
        ------
        InputError
            There is a partition of before, and it is kept.
        """
        if not self.kept or not isinstance(out, str | os.PathLike):
            return
        path = Path(out)
        if is_partition(path) and path.resolve() not in self.written:
            refuse("partition over another one", path=path)


def keep_earlier(kept: bool) -> None:
    """Let `partition_graph` refuse, or not, to replace partitions of before this program.

    With `overwrite` in the call it replaces them anyway.
    """
    earlier = state_of(_Earlier)
    earlier.kept = kept
    earlier.written.clear()


_SETTINGS = {"target_ntype": "target", "metapaths": "metapaths", "seed": "seed",
             "replication": "replication", "memory_mb": "memory_mb", "cut": "cut",
             "hubs": "hubs", "shared": "shared"}
"""Arguments that settings of the section `partition` have as well."""


def _decided(settings: Settings, given: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments with what the settings name; what that overrules is said once."""
    said, asked, chosen = settings.partition, settings.asked("partition"), dict(given)
    if "method" in asked:
        chosen["part_method"] = said.method
    if chosen["part_method"] in DGL_METHODS:
        if given["part_method"] not in DGL_METHODS:
            # DGL's own function takes no argument of ours.
            chosen |= dict.fromkeys(OWN) | {"settings": (), "overwrite": True}
            _overruled(f"partition.method = {said.method} says", chosen, given)
        return chosen
    named = {argument: asked[key] for argument, key in _SETTINGS.items() if key in asked}
    if len(named.get("target_ntype") or ()) == 1:
        named["target_ntype"] = named["target_ntype"][0]
    if settings.origin("model.layers").asked and said.metapaths is None:
        named["hops"] = settings.model.layers
    if settings.origin("model.name").asked and settings.model.name in MODELS:
        named["model"] = settings.model.name
    if said.metapaths is not None and given["num_hops"] not in (None, 1):
        named["num_hops"] = None
    chosen |= named
    _overruled("the settings say", chosen, given)
    if "parts" in asked and said.parts != given["num_parts"]:
        warn_once(f"partition.parts = {said.parts} in the settings has no effect on a script: "
                  f"num_parts={given['num_parts']} counts")
    return chosen


def _overruled(by: str, chosen: dict[str, Any], given: dict[str, Any]) -> None:
    """Say which arguments of the script have no effect."""
    lost = [f"{name}={shown(value)}" for name, value in given.items()
            if name in (*OWN, "num_hops", "settings", "overwrite") and value is not None
            and chosen[name] is not value and chosen[name] != value]
    if lost:
        warn_once(f"no effect on partition_graph, since {by} otherwise: {', '.join(lost)}")


def _partition_graph(original: Any) -> Any:
    def partition_graph(*args: Any, **kwargs: Any) -> Any:
        return partition(original, selected(), *args, **kwargs)
    return partition_graph


PATCHES = (
    *patch_all(homes("partition_graph"), _partition_graph, "partition by the selected method"),
)
