"""Which settings are in force in a process, for all that is patched in it."""

from __future__ import annotations

from dgl_heta.settings import Settings

_settings: Settings | None = None


def select(settings: Settings | None) -> None:
    """Let these settings be in force, or none."""
    global _settings
    _settings = settings


def selected() -> Settings:
    """The settings in force; the defaults if there are none."""
    return _settings or Settings()


OF_TRAINING = ("epochs", "lr", "sparse_lr", "weight_decay", "optimizer", "optimizer_options",
               "schedule", "schedule_options", "clip_grad_norm", "class_weights", "early_stopping",
               "metrics", "monitor", "autocast", "eval_fanouts", "eval_every")
"""Settings of `train` that `dgl-heta train` alone follows; a script decides these itself."""


def without_effect(settings: Settings) -> str | None:
    """What to say of settings that are given and have no effect on a script."""
    asked = settings.asked("train")
    given = [f"train.{key}" for key in OF_TRAINING if key in asked]
    given += [f"task.{key}" for key in sorted(settings.asked("task"))]
    given += ["run.loggers"] * bool(settings.run.loggers)
    if not given:
        return None
    return f"no effect on a script, which trains by itself: {', '.join(given)} (of dgl-heta train)"
