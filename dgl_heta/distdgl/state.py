"""The state of this process between `enable` and `disable`: one object, closed once.

Patched functions of DGL cannot be handed an object of ours, so they ask here. Each room keeps its
state in a class, and gets the only instance of it by :func:`state_of`. What belongs to one graph
hangs on its :class:`~.session.Session`, which is kept here, too.
"""

from __future__ import annotations

from typing import Any, TypeVar

from dgl_heta.hooks.manager import plugins
from dgl_heta.hooks.protocols import ModuleWrapper
from dgl_heta.settings import Settings

Kind = TypeVar("Kind")


class State:
    """The settings in force, the session, and an instance of each class that was asked for.

    Attributes
    ----------
    asked : settings as `enable` was given them.
    settings : in force; the defaults before `enable`.
    session : of the meta-partitioned graph that is open, or None.
    """

    def __init__(self) -> None:
        self.asked = self.settings = Settings()
        self.session: Any = None
        self._instances: dict[type, Any] = {}

    def of(self, kind: type[Kind]) -> Kind:
        """Return this process's instance of a class, made without arguments at the first call."""
        if kind not in self._instances:
            self._instances[kind] = kind()
        instance: Kind = self._instances[kind]
        return instance

    def close(self) -> None:
        """Close the session, then every instance that has a `close`, the last one first, and forget
        them all."""
        try:
            if self.session is not None:
                self.session.close()
            while self._instances:
                _, instance = self._instances.popitem()
                getattr(instance, "close", lambda: None)()
        finally:
            # Instances may look at the session while they are closed, so it goes last.
            self._instances.clear()
            self.asked = self.settings = Settings()
            self.session = None


_state = State()


def state_of(kind: type[Kind]) -> Kind:
    """Return this process's instance of a class of state."""
    return _state.of(kind)


def process_state() -> State:
    """Return the state of this process."""
    return _state


def selected() -> Settings:
    """Return the settings in force."""
    return _state.settings


FOR_SCRIPTS = ("wrapper", "learnable", "kernel", "batches", "sampling_threads", "complete_states",
               "lazy_features", "exchange_dtype", "seed_states", "dtype", "trainers")
"""Settings of `train` that scripts follow, or refuse; they decide the others themselves."""


def without_effect(settings: Settings) -> str | None:
    """Return a line on settings that are given and have no effect on a script, or None."""
    asked = settings.asked("train")
    given = [f"train.{key}" for key in sorted(asked) if key not in FOR_SCRIPTS]
    given += [f"task.{key}" for key in sorted(settings.asked("task"))]
    given += ["run.loggers"] * bool(settings.run.loggers)
    if not given:
        return None
    return f"no effect on a script, which trains by itself: {', '.join(given)} (of dgl-heta train)"


def wrapper_for_any_graph() -> ModuleWrapper | None:
    """Return the selected wrapper for parts that DGL made; None for DGL's own way."""
    if not selected().origin("train.wrapper").asked:
        return None
    wrapper: ModuleWrapper = plugins().get("module wrapper", selected().train.wrapper)
    return wrapper if wrapper.any_graph else None
