"""Switch dgl-heta on and off in a process; run a script with it.

`dgl_heta.enable()`, `dgl_heta.disable()`, and what `dgl-heta run` does.
"""

from __future__ import annotations

import atexit
import logging
import os
import runpy
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dgl_heta.distdgl import patches
from dgl_heta.errors import HetaError, InputError
from dgl_heta.hooks.manager import plugins, use
from dgl_heta.settings import Settings, load_settings
from dgl_heta.system.patching import apply, plain, remove

TESTED = ("2.1.0",)
"""Versions of DGL that the patched names were read in and tested with."""

log = logging.getLogger("dgl_heta")
_settings: Settings | None = None


def enable(config: str | Path | None = None, *, settings: Iterable[str] = ()) -> None:
    """Let DistDGL scripts use the selected providers from now on, in this process.

    Call it before names are imported out of `dgl.distributed` (`from … import load_partition`).
    With no partition of dgl-heta in play, and none asked for, everything is plain DGL.

    Parameters
    ----------
    config : settings in TOML; default: what DGL_HETA_CONFIG names, or none.
    settings : overrides, as `--set`: "train.learnable=replica".

    Raises
    ------
    InputError
        A wrong setting, an unknown provider, a version of DGL that is not known.

    Examples
    --------
    >>> import dgl_heta
    >>> dgl_heta.enable(settings=["partition.method=meta"])
    """
    global _settings
    os.environ.setdefault("DGLBACKEND", "pytorch")
    chosen = load_settings(config, settings)
    known = plugins().configured(chosen)
    for kind, name in (("partition backend", chosen.partition.method),
                       ("module wrapper", chosen.train.wrapper),
                       ("cache policy", chosen.cache.policy),
                       ("aggregation kernel", chosen.train.kernel)):
        known.get(kind, name)
    _check_version()
    apply(patches.PATCHES)
    use(known)
    _settings = chosen


def disable() -> None:
    """Put DGL back as it was, and forget the graph that is open."""
    global _settings
    from dgl_heta.distdgl import tensors
    from dgl_heta.distdgl.session import close_session

    remove()
    close_session()
    tensors.close()
    use(None)
    _settings = None


def selected() -> tuple[Settings, bool]:
    """The settings in force, and whether they name the partition method."""
    settings = _settings or Settings()
    return settings, "method" in settings.partition.model_fields_set


def _check_version() -> None:
    import dgl

    version = dgl.__version__.partition("+")[0]
    if version not in TESTED:
        raise InputError(f"dgl {dgl.__version__} is installed; switching DistDGL scripts works "
                         f"with dgl {', '.join(TESTED)}: install that version")


def open_graph(graph: Any, part_config: str | None) -> None:
    """Called for every new DistGraph: opens a session if its partition is ours."""
    from dgl_heta.distdgl import tensors
    from dgl_heta.distdgl.partitions import is_ours
    from dgl_heta.distdgl.session import open_session

    config = part_config or os.environ.get("DGL_CONF_PATH")
    if config is None or not is_ours(config):
        tensors.open_graph(graph)
        return
    if patches.plain_modules:
        raise InputError("DistributedDataParallel was called before the DistGraph of a "
                         "meta-partitioned graph was made, so it averages gradients the plain way; "
                         "make the DistGraph first")
    graph.heta = open_session(config, graph.get_partition_book().partid, selected()[0], plugins())


def open_loader(session: Any, graph: Any, nids: Any, sampler: Any, device: Any,
                options: dict[str, Any]) -> Any:
    """The loader of a DistNodeDataLoader on a meta-partitioned graph."""
    from dgl_heta.distdgl.loader import RafLoader

    if device not in (None, "cpu"):
        raise InputError(f"DistNodeDataLoader with device={device!r} cannot be used with a "
                         "DistGraph; leave it out and move blocks with block.to(device)")
    if int(os.environ.get("DGL_NUM_SAMPLER", "0")):
        log.warning("sampler processes (DGL_NUM_SAMPLER) stay idle: on a meta-partitioned graph "
                    "each trainer samples from its own disk")
    if not isinstance(nids, Mapping):
        nids = {session.plan.targets[0]: nids}
    import torch

    nids = {t: torch.as_tensor(ids, dtype=torch.int64) for t, ids in nids.items()}
    return RafLoader(session, nids, sampler, **options)


def open_embedding(embedding: Any) -> None:
    """Called for every new DistEmbedding: takes over those of nodes of the graph's types."""
    from dgl_heta.distdgl.embedding import Table
    from dgl_heta.distdgl.session import current

    session = current()
    policy = embedding._tensor.part_policy
    embedding.heta = None
    if session is None or not policy.policy_str.startswith("node~"):
        return
    from dgl.distributed.dist_tensor import DistTensor

    embedding.heta = Table(session, embedding, policy.policy_str.removeprefix("node~"),
                           plain(DistTensor.__getitem__))
    session.embeddings.append(embedding.heta)


def run_script(script: Path, arguments: Sequence[str], config: Path | None,
               overrides: Sequence[str]) -> None:
    """Run a script as `python script.py ARGS` would, with dgl-heta enabled.

    Raises
    ------
    InputError
        No such script, or as :func:`enable`.
    """
    if not script.is_file():
        raise InputError(f"there is no script {script}")
    enable(config, settings=overrides)
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as leave:
        if leave.code not in (None, 0):
            if isinstance(leave.code, str):
                print(leave.code, file=sys.stderr)
            raise HetaError(f"{script} ended with exit status {leave.code}") from None
    except HetaError:
        raise
    except Exception:
        traceback.print_exc()
        raise HetaError(f"{script} failed") from None
    # DistDGL leaves its servers when the interpreter ends; after that the threads of a process
    # group can hang or abort an ordinary exit.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
