"""Switch dgl-heta on and off in a process: `dgl_heta.enable()`, `dgl_heta.disable()`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from dgl_heta.comm.dgl_connections import wait_at_most
from dgl_heta.distdgl.selection import select
from dgl_heta.distdgl.versions import release
from dgl_heta.hooks.manager import plugins, use
from dgl_heta.settings import load_settings
from dgl_heta.system.patching import apply, remove


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
    os.environ.setdefault("DGLBACKEND", "pytorch")
    chosen = load_settings(config, settings)
    known = plugins().configured(chosen)
    for kind, name in (("partition backend", chosen.partition.method),
                       ("module wrapper", chosen.train.wrapper),
                       ("cache policy", chosen.cache.policy),
                       ("aggregation kernel", chosen.train.kernel),
                       ("batch source", chosen.train.batches)):
        known.get(kind, name)
    release()
    wait_at_most(chosen.run.timeout_s)
    from dgl_heta.distdgl.patches import PATCHES
    from dgl_heta.distdgl.programs import watch_programs

    watch_programs(known)
    apply(PATCHES)
    use(known)
    if chosen.run.reference:
        from dgl_heta.distdgl.reference import plain_settings

        chosen = plain_settings(chosen)
    select(chosen)
    if chosen.run.record is not None:
        from dgl_heta.distdgl.recording import start_recording

        start_recording(Path(chosen.run.record), chosen.run.reference, chosen.run.double)


def disable() -> None:
    """Put DGL back as it was, and forget the graph that is open."""
    from dgl_heta.distdgl import ending, graphbolt_parts, partitions, proof, tensors
    from dgl_heta.distdgl.epochs import forget_epochs
    from dgl_heta.distdgl.own_part import close_part
    from dgl_heta.distdgl.programs import forget_programs
    from dgl_heta.distdgl.session import close_session
    from dgl_heta.distdgl.sparse_steps import forget_steps

    remove()
    forget_programs()
    close_part()
    ending.forget()
    graphbolt_parts.forget()
    partitions.keep_earlier(False)
    proof.stop()
    close_session()
    tensors.close()
    forget_epochs()
    forget_steps()
    use(None)
    select(None)
