"""Sources of a data loader's batches: sampled when they are asked for, or ahead of time."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable

from dgl_heta.distdgl.groups import Groups
from dgl_heta.hooks.batch_protocol import BatchSource
from dgl_heta.hooks.manager import Plugins
from dgl_heta.settings import Settings


class BatchSources:
    """The batch sources of a session, and what sampling ahead of time took.

    Parameters
    ----------
    settings, plugins : which source, and all there are.
    groups : of this trainer; the first one tells at the end of the run.
    say : logs a line, once.
    """

    def __init__(self, settings: Settings, plugins: Plugins, groups: Groups,
                 say: Callable[[str], None]) -> None:
        self._plugins, self._groups, self._say = plugins, groups, say
        self._chosen: BatchSource = plugins.get("batch source", settings.train.batches)
        self._asked = settings.origin("train.batches").asked
        self._worked = self._waited = 0.0

    def serving(self, workers: int) -> BatchSource:
        """Return the source for a data loader that asks for so many sampling workers.

        It is the one of `train.batches`. Where that says nothing and there are to be workers, it is
        one that serves them, if there is such a source.
        """
        source = self._chosen
        if workers and not self._asked:
            providers = self._plugins.providers("batch source")
            source = next((self._plugins.get("batch source", name) for name, provider
                           in providers.items() if provider.value.serves_workers), source)
        if source.ahead:
            self._say(f"batches are made ahead of time, on threads (train.batches = {source.name})")
        elif workers:
            self._say("no sampling workers are started: on a meta-partitioned graph each trainer "
                      "samples from its own disk, when it takes a batch" + (
                          "" if self._asked else
                          "; with dgl-heta-hifuse installed, it does so ahead of time"))
        return source

    def count(self, worked: float, waited: float) -> None:
        """Add the seconds that a pass was sampled in ahead of time, and those that this trainer
        waited for. The first trainer tells both at the end."""
        if not worked:
            return
        if not self._worked and self._groups.world.rank == 0:
            atexit.register(self._tell)
        self._worked += worked
        self._waited += waited

    def _tell(self) -> None:
        hidden = max(self._worked - self._waited, 0.0)
        print(f"dgl-heta: {self._worked:.2f} s of sampling ahead of time, {hidden:.2f} s of them "
              f"({100 * hidden / self._worked:.0f} %) behind training", file=sys.stderr, flush=True)
