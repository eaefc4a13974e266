"""Loggers of a run (`run.loggers`): who is told of each epoch, and what happens if one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

from dgl_heta.errors import InputError, shortened
from dgl_heta.hooks.manager import Plugins
from dgl_heta.hooks.protocols import RunLog
from dgl_heta.settings import Settings

logger = logging.getLogger("dgl_heta")


class Loggers:
    """The logs of a run while it is open; used in a `with`, which closes them.

    Parameters
    ----------
    done : epochs from before.
    first : whether this is worker 0; others have none.

    Raises
    ------
    InputError
        A logger cannot be had: no provider has the name, or it says so itself.
    """

    def __init__(self, registry: Plugins, settings: Settings, run_dir: Path, done: int,
                 first: bool) -> None:
        self._logs: dict[str, RunLog] = {}
        chosen = {name: registry.get("logger", name) for name in settings.run.loggers}
        if not first:
            return
        values = settings.model_dump(mode="json")
        for name, provider in chosen.items():
            log = self._guarded(name, partial(provider.open, run_dir, values, done))
            if log is not None:
                self._logs[name] = log

    def epoch(self, record: dict[str, Any]) -> None:
        for name, log in list(self._logs.items()):
            self._guarded(name, partial(log.epoch, record))

    def close(self, summary: dict[str, Any] | None) -> None:
        """Close what is open; once."""
        while self._logs:
            name, log = self._logs.popitem()
            self._guarded(name, partial(log.close, summary))

    def __enter__(self) -> Loggers:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close(None)

    def _guarded(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except InputError:
            self._logs.pop(name, None)
            raise
        except Exception as error:
            self._logs.pop(name, None)
            logger.warning("logger '%s' failed and is not called again; training goes on, with its "
                           "records in the run directory: %s: %s", name, type(error).__name__,
                           shortened(str(error)))
        return None
