"""The origin of a setting: who named its value.

Some values follow from others unless somebody named one: a partition keeps what it was made with
unless the user asks otherwise, a script's argument gives way to a file. Who named a value is noted
once, by :func:`~dgl_heta.settings.load_settings`, and read by :meth:`Settings.origin
<dgl_heta.settings.Settings.origin>`.
"""

from __future__ import annotations

from enum import Enum


class Origin(Enum):
    """Where a value comes from, the weakest first."""

    DEFAULT = "default"
    PLAN = "plan"
    """The partition that is opened, or the number of workers that a scheduler has started."""
    PROGRAM = "program"
    """A value of Python code that made the settings itself."""
    ARGUMENT = "argument"
    """An argument of a script's call."""
    FILE = "file"
    VARIABLE = "environment variable"
    FLAG = "flag"
    """`--set`, or an option of a command."""

    @property
    def asked(self) -> bool:
        """True if a user, or a user's program, asked for the value."""
        return self not in (Origin.DEFAULT, Origin.PLAN)
