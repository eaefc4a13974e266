"""Switch dgl-heta on and off in a process: `dgl_heta.enable()`, `dgl_heta.disable()`."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from dgl_heta.comm.dgl_connections import wait_at_most
from dgl_heta.distdgl.state import process_state
from dgl_heta.distdgl.versions import release
from dgl_heta.errors import InputError
from dgl_heta.hooks.manager import Plugins, plugins, use
from dgl_heta.settings import load_settings
from dgl_heta.system.patching import Patch, applied, apply, remove

log = logging.getLogger("dgl_heta")


def enable(config: str | Path | None = None, *, settings: Iterable[str] = ()) -> None:
    """Let DistDGL scripts use the selected providers from now on, in this process.

    With no partition of dgl-heta in play, and none asked for, everything is plain DGL.

    Parameters
    ----------
    config : settings in TOML; default: what DGL_HETA_CONFIG names, or none. Where it is enabled
        already (`dgl-heta run`), a call without arguments changes nothing.
    settings : overrides, as `--set`: "train.learnable=replica".

    Raises
    ------
    InputError
        A wrong setting, an unknown provider, a version of DGL that is not known; a graph is open
        by other settings.

    Examples
    --------
    >>> import dgl_heta
    >>> dgl_heta.enable(settings=["partition.method=meta"])
    """
    os.environ.setdefault("DGLBACKEND", "pytorch")
    settings = list(settings)
    if applied() and config is None and not settings:
        return  # by `dgl-heta run` or the environment, with settings that stay
    chosen = load_settings(config, settings)
    if applied() and chosen.model_dump() != process_state().asked.model_dump():
        if process_state().session is not None:
            raise InputError("dgl-heta is enabled with other settings, by which a graph is open; "
                             "call dgl_heta.disable before dgl_heta.enable")
        log.warning("dgl_heta.enable replaces the settings that dgl-heta was enabled with")
    known = plugins().configured(chosen)
    # All names now, not when they are first used: a typing error ends the script at its first line.
    for kind, name in (("partition backend", chosen.partition.method),
                       ("module wrapper", chosen.train.wrapper),
                       ("cache policy", chosen.cache.policy_on(False)),
                       ("batch source", chosen.train.batches)):
        known.get(kind, name)
    known.kernel(chosen.train.kernel, gpu=False)
    if not known.get("batch source", chosen.train.batches).in_scripts:
        raise InputError(f"train.batches = {chosen.train.batches} is for `dgl-heta train`; scripts "
                         "can use on-demand or, ahead of time, pipeline")
    release()
    wait_at_most(chosen.run.timeout_s)
    from dgl_heta.distdgl.programs import forget_programs, watch_programs

    try:
        watch_programs(known)
        apply(every_patch(known))
    except BaseException:
        forget_programs()  # all or nothing
        raise
    use(known)
    from dgl_heta.distdgl.autograd.lacking_gradients import ParameterNumbers

    process_state().of(ParameterNumbers)  # before the script makes a module
    process_state().asked = chosen
    if chosen.run.reference:
        from dgl_heta.distdgl.reference import plain_settings

        chosen = plain_settings(chosen)
    process_state().settings = chosen
    if chosen.run.record is not None:
        from dgl_heta.distdgl.proof.recording import start_recording

        start_recording(Path(chosen.run.record), chosen.run.reference, chosen.run.double)


def every_patch(known: Plugins) -> list[Patch]:
    """Return the patches of all plugins, the built-ins' first."""
    return [patch for provider in known.providers("patches").values()
            for patch in provider.value.patches()]


def disable() -> None:
    """Put DGL back as it was, and forget the graph that is open and all that was kept of it."""
    from dgl_heta.distdgl.programs import forget_programs

    remove()
    forget_programs()
    process_state().close()
    use(None)
