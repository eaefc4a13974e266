"""The user's command, rewritten where settings are given so that it runs under `dgl-heta run`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from dgl_heta.errors import InputError

WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")  # interpreter options before the script


@dataclass(frozen=True)
class Command:
    """What every process runs; plain DistDGL unless there are settings."""

    words: tuple[str, ...]
    config: Path | None = None
    overrides: tuple[str, ...] = ()

    @property
    def active(self) -> bool:
        """Whether the script runs under `dgl-heta run`."""
        return self.config is not None or bool(self.overrides)

    @property
    def script(self) -> str | None:
        """The Python script of the command, as it is written; None for any other command."""
        at = _script(self.words)
        return None if at is None else self.words[at]

    def run_by(self, interpreter: str) -> Command:
        """The same with this interpreter, where the command says no more than 'python'."""
        if self.words[0] not in ("python", "python3"):
            return self
        return replace(self, words=(interpreter, *self.words[1:]))

    def on(self, ip_config: str, part_config: str, config: str | None) -> list[str]:
        """The words on a host where these are the paths of the files."""
        words = [word.replace("{ip_config}", ip_config).replace("{part_config}", part_config)
                 for word in self.words]
        return activate(words, config, self.overrides) if self.active else plain(words)


def is_python(word: str) -> bool:
    """Whether a word of a command line names a Python interpreter."""
    return re.fullmatch(r"(python|pypy)\d*(\.\d+)*t?", PurePath(word).name) is not None


def activate(command: Sequence[str], config: str | None, overrides: Sequence[str]) -> list[str]:
    """`python [options] -m dgl_heta run [-c FILE] [--set …] SCRIPT ARGS` of a user's command.

    Raises
    ------
    InputError
        The command is not `python [options] SCRIPT ARGS`.
    """
    at = _script(command)
    if at is None:
        raise InputError(
            f"with settings (-c, --set, DGL_HETA_CONFIG) the command must be 'python SCRIPT …', "
            f"but it is '{shlex.join(command)}'; write it so, or leave the settings out and call "
            "dgl_heta.enable() in the script")
    settings = ["-c", config] if config else []
    for override in overrides:
        settings += ["--set", override]
    return [*command[:at], "-m", "dgl_heta", "run", *settings, *command[at:]]


def plain(command: Sequence[str]) -> list[str]:
    """A user's command without settings; a Python script ends at once when it fails."""
    at = _script(command)
    if at is None:
        return list(command)
    return [*command[:at], "-m", "dgl_heta.launch.plain", *command[at:]]


def _script(command: Sequence[str]) -> int | None:
    """Where the script is in `python [options] SCRIPT ARGS`; None for any other form."""
    if not command or not is_python(command[0]):
        return None
    at = 1
    while at < len(command) and command[at].startswith("-"):
        word = command[at]
        short = re.fullmatch(r"-[A-Za-z?]+", word)
        if word == "-" or (short and re.search(r"^-[^WX]*[cm]", word)):  # no script: stdin, -c, -m
            return None
        at += 2 if word in WITH_VALUE or (short and re.search(r"^-[^WX]+[WX]$", word)) else 1
    return at if at < len(command) else None
