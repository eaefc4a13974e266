"""Profiles: visits per node and miss penalties, stored with the plan and used again.

A profile is a directory of files, two per worker: `visits-KEY-RANK.safetensors`, keyed by graph,
plan and sampling, and `penalties-KEY-RANK.json`, keyed by hardware and by where rows live.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from dgl_heta.cache.penalties import Penalty
from dgl_heta.errors import HetaError, InputError
from dgl_heta.system.atomic_files import replacing, utf8_name
from dgl_heta.system.checksums import agrees, signed

_SETTINGS = {"epochs": "cache.epochs", "fanouts": "train.fanouts", "learnable": "train.learnable",
             "batch_size": "train.batch_size", "seed_states": "train.seed_states",
             "global_batch_size": "train.global_batch_size"}
FORMAT, VERSION = "dgl-heta-profile", 1
_BROKEN = (OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError, OverflowError,
           RecursionError)
"""The errors of reading a file that is no profile, however it was signed."""


@dataclass(frozen=True)
class Visits:
    """The visits that pre-sampling counted on one worker.

    Attributes
    ----------
    counts : node type → visits per node, int64 (nodes,).
    batches : sampled.
    seconds : that took.
    """

    counts: Mapping[str, np.ndarray]
    batches: int
    seconds: float

    def per_batch(self, ntype: str) -> float:
        """Mean number of rows of a type that a batch reads."""
        return float(self.counts[ntype].sum()) / max(self.batches, 1)


def key_of(facts: Mapping[str, Any]) -> str:
    """A short name for facts (JSON values) that must be equal for a profile to be used."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def hardware(device: torch.device) -> dict[str, Any]:
    """The properties of this machine that miss penalties depend on."""
    model = platform.processor() or platform.machine()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        for line in text.splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"processor": model, "cores": os.cpu_count(), "device": name,
            "torch": torch.__version__}


class ProfileFiles:
    """One worker's files of a profile.

    Parameters
    ----------
    directory : of the profile.
    sampling, machine : the facts that visits and penalties depend on.
    rank : of the worker.
    given : the user named the directory, so what it holds must fit.
    """

    def __init__(self, directory: Path, sampling: Mapping[str, Any], machine: Mapping[str, Any],
                 rank: int, given: bool = False) -> None:
        self.directory, self._given = directory, given
        self._sampling, self._machine = dict(sampling), dict(machine)
        self._visits = directory / f"visits-{key_of(sampling)}-{rank}.safetensors"
        self._penalties = directory / f"penalties-{key_of(machine)}-{rank}.json"
        self._rank = rank

    def load_visits(self, counts: Mapping[str, int]) -> Visits | None:
        """The stored visits, or None if there are none for this graph, plan and sampling.

        Raises
        ------
        InputError
            The user named the directory, and it has none that fit, or damaged ones.
        """
        if not self._visits.is_file():
            if self._given:
                raise InputError(self._other())
            return None
        try:
            with utf8_name(self._visits) as utf8, safe_open(utf8, "pt") as file:
                note = _note(file)
                counted = {t: file.get_tensor(f"visits.{t}").numpy() for t in counts}
            if note["sampling"] != self._sampling:
                raise ValueError("it is of another graph, plan or sampling than its name says")
            for ntype, visits in counted.items():
                if visits.shape != (counts[ntype],) or visits.dtype != np.int64 or (
                        visits < 0).any():
                    raise ValueError(f"visits of '{ntype}' are {visits.dtype}{visits.shape}")
                if note["types"].get(ntype) != _sum(visits):
                    raise ValueError(f"the checksum of the visits of '{ntype}' does not agree")
            if not 1 <= note["batches"] < 2**62:
                raise ValueError(f"it is of {note['batches']} batches")
            return Visits(counted, int(note["batches"]), float(note["seconds"]))
        except _BROKEN as error:
            if self._given:
                raise InputError(f"profile {self._visits} is damaged: {error}") from None
            return None  # made again

    def save_visits(self, visits: Visits) -> bool:
        """Store visits; False where the directory cannot be written."""
        note = {"format": FORMAT, "version": VERSION, "sampling": self._sampling,
                "batches": visits.batches, "seconds": visits.seconds,
                "types": {t: _sum(c) for t, c in visits.counts.items()}}
        tensors = {f"visits.{t}": torch.from_numpy(c) for t, c in visits.counts.items()}
        return self._replace(self._visits, lambda path: save_file(
            tensors, path, {"profile": json.dumps(signed(note))}))

    def load_penalties(self, row_bytes: Mapping[str, int]) -> dict[str, Penalty] | None:
        """The stored penalties of rows of these sizes, or None if there are none that fit.

        Raises
        ------
        InputError
            The user named the directory, and the penalties in it are damaged.
        """
        if not self._penalties.is_file():
            return None  # another machine: measured here
        try:
            note = _checked(json.loads(self._penalties.read_text(encoding="utf-8")))
            if note["machine"] != self._machine:
                raise ValueError("it is of another machine than its name says")
            penalties = {t: Penalty.from_json(note["types"][t]) for t in row_bytes}
            if {t: p.row_bytes for t, p in penalties.items()} != dict(row_bytes):
                raise ValueError("its rows have other sizes")
            return penalties
        except _BROKEN as error:
            if self._given:
                raise InputError(f"profile {self._penalties} is damaged: {error}") from None
            return None

    def save_penalties(self, penalties: Mapping[str, Penalty]) -> bool:
        """Store penalties; False where the directory cannot be written."""
        note = {"format": FORMAT, "version": VERSION, "machine": self._machine,
                "types": {t: p.to_json() for t, p in penalties.items()}}
        return self._replace(self._penalties, lambda path: path.write_text(
            json.dumps(signed(note), indent=1) + "\n", encoding="utf-8"))

    def _replace(self, path: Path, write: Callable[[Path], object]) -> bool:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as temporary:
                write(temporary)
            return True
        except (OSError, SafetensorError) as error:
            if self._given:
                reason = getattr(error, "strerror", None) or error
                raise HetaError(f"cannot write the profile {path}: {reason}") from None
            return False

    def _other(self) -> str:
        """Says in what the profiles of the directory differ from the one that is needed."""
        for path in sorted(self.directory.glob(f"visits-*-{self._rank}.safetensors")):
            try:
                with utf8_name(path) as utf8, safe_open(utf8, "pt") as file:
                    sampling = _note(file)["sampling"]
                for name, wanted in self._sampling.items():
                    if sampling.get(name) != wanted:
                        what = _SETTINGS.get(name, name)
                        return (f"the profile in {self.directory} was made for another {what} "
                                f"({_short(sampling.get(name))} instead of {_short(wanted)}); make "
                                "one with `dgl-heta profile` and the same settings, or leave "
                                "cache.profile out")
            except _BROKEN:
                continue
        return (f"there is no profile for worker {self._rank} in {self.directory}; make one with "
                "`dgl-heta profile --out`, or leave cache.profile out")


def _note(file: Any) -> dict[str, Any]:
    return _checked(json.loads((file.metadata() or {})["profile"]))


def _checked(note: Any) -> dict[str, Any]:
    if not isinstance(note, dict) or note["format"] != FORMAT or note["version"] != VERSION:
        raise ValueError(f"it is no profile of version {VERSION}")
    if not agrees(note):
        raise ValueError("its checksum does not agree, or it has none; make it again")
    return note


def _sum(visits: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(visits).data).hexdigest()


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}…"
