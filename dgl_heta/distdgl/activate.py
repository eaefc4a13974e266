"""Switch dgl-heta on and off in a process; run a script with it.

`dgl_heta.enable()`, `dgl_heta.disable()`, and what `dgl-heta run` does.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from dgl_heta.distdgl.selection import select
from dgl_heta.distdgl.versions import release
from dgl_heta.errors import HetaError, InputError
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
    from dgl_heta.distdgl.patches import PATCHES

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
    from dgl_heta.distdgl import ending, proof, tensors
    from dgl_heta.distdgl.epochs import forget_epochs
    from dgl_heta.distdgl.own_part import close_part
    from dgl_heta.distdgl.session import close_session
    from dgl_heta.distdgl.sparse_steps import forget_steps

    remove()
    close_part()
    ending.forget()
    proof.stop()
    close_session()
    tensors.close()
    forget_epochs()
    forget_steps()
    use(None)
    select(None)


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
    from dgl_heta.distdgl.ending import end

    end()
    # DistDGL leaves its servers when the interpreter ends; after that the threads of a process
    # group can hang or abort an ordinary exit.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
