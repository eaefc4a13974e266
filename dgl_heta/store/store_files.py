"""The files of a relation store: which are here, of what size, with what checksums."""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from dgl_heta.errors import InputError, several
from dgl_heta.graph.schema import Relation
from dgl_heta.store.manifest import FILE_NAME, ArrayEntry, Manifest
from dgl_heta.store.staged import FILE_NAME as STAGED_FILE
from dgl_heta.store.staged import Staged, pieces_sum
from dgl_heta.store.structure import Finite, Rule, rule_of

PROFILES_DIR = "profiles"
"""Of the cache, beside a plan or in a store; losing them costs their time."""
_BLOCK = 2**22  # bytes


def others_in_store(directory: Path) -> Iterator[Path]:
    """The files in a store, staged or not, that dgl-heta does not write there."""
    for file in directory.rglob("*"):
        ours = (file.suffix == ".npy" or file in (directory / FILE_NAME, directory / STAGED_FILE)
                or (file.parent == directory / PROFILES_DIR and is_profile(file)))
        if not (ours or file.is_dir()):
            yield file


def is_profile(file: Path) -> bool:
    """Return whether a file in a directory of profiles is called as one."""
    return file.match("visits-*.safetensors") or file.match("penalties-*.json")


class StoreFiles:
    """The files of a store, each checked when it is opened; arguments and attributes are as of
    :class:`dgl_heta.store.Store`."""

    def __init__(self, directory: str | Path, verify: bool = False) -> None:
        self.directory = Path(directory)
        self._verify_opened = verify
        self._verified: set[str] = set()  # files
        self._not_finite: list[str] = []  # of the features that were compared last
        self._mapped_files: dict[str, tuple[ArrayEntry, tuple[int, int]]] = {}  # device and inode
        self.manifest = Manifest.load(self.directory)
        self._opened = _identity(self.directory / FILE_NAME)
        entries = self.manifest.entries()
        self.staged = Staged.load(self.directory, self.manifest.to_json,
                                  {entry.file: entry.bytes for entry in entries})
        for entry in entries:
            if self._is_here(entry):
                self._check_size(entry)
        if verify:
            self._refuse_unlike()

    def check_whole(self) -> None:
        """Check that all files are there.

        Raises
        ------
        InputError
            The store was staged for some partitions.
        """
        if self.staged is not None:
            raise InputError(f"{self.directory} is staged for {self.staged}, and holds no whole "
                             "graph; give the store that it was staged from")

    def check_here(self, relations: Collection[Relation], why: str) -> None:
        """Check that relations that a partition runs are there.

        Parameters
        ----------
        why : it runs them, though others were to run them for it.

        Raises
        ------
        InputError
            One is not, by name.
        """
        for entry in self.manifest.relations:
            if entry.relation in relations and not self._is_here(entry.files[0]):
                raise InputError(
                    f"{self.directory} is staged for {self.staged}, for which another partition "
                    f"was to run relation '{entry.relation}', but {why}; leave that setting out, "
                    "or partition the graph with partition.shared = rows and stage it again")

    def check_sizes(self) -> None:
        """Look whether a file that is mapped was cut since: reading it would end the process by
        SIGBUS. What has another file in its place is still there.

        Raises
        ------
        InputError
            It was, by name.
        """
        for entry, file in self._mapped_files.values():
            with contextlib.suppress(OSError):  # it has no name any more, but is still there
                if _identity(self.directory / entry.file) == file:
                    self._check_size(entry)

    def compared(self, entry: ArrayEntry) -> Iterator[int]:
        """Compare a file with its checksum, and its content with its rule; yields bytes done."""
        self._check_here(entry)
        pieces = self.staged.files[entry.file] if self.staged else None
        if pieces is not None:  # its rule was checked where the whole file was
            self._compare_sum(entry, pieces_sum(pieces, self.directory / entry.file), pieces.sha256)
            yield entry.bytes
            return
        digest, path = hashlib.sha256(), self.directory / entry.file
        rule, dtype = rule_of(self.manifest, entry), np.dtype(entry.dtype)
        skip, rest = max(entry.bytes - dtype.itemsize * math.prod(entry.shape), 0), b""
        try:
            with path.open("rb", buffering=0) as file:
                while data := file.read(_BLOCK):
                    digest.update(data)
                    if rule is not None:
                        body, skip = data[skip:] if skip else data, max(skip - len(data), 0)
                        body = rest + body if rest else body
                        whole = len(body) // dtype.itemsize
                        rule.add(np.frombuffer(body, dtype, whole))
                        rest = body[whole * dtype.itemsize:]
                    yield len(data)
        except OSError as error:
            raise InputError(f"cannot read store file {path}: "
                             f"{error.strerror or error}") from None
        self._compare_sum(entry, digest.hexdigest(), entry.sha256)
        self._refuse(entry, rule.end() if isinstance(rule, Rule) else "")
        if isinstance(rule, Finite) and rule.wrong:
            self._not_finite.append(
                f"features {path} have {several(rule.wrong, 'number')} that single precision has "
                f"no finite value for (NaN, infinity or too large), first in row "
                f"{rule.first // max(math.prod(entry.shape[1:]), 1)}; what is computed of these "
                "nodes and of those around them is NaN, too")
        self._verified.add(entry.file)

    def _compare_sum(self, entry: ArrayEntry, is_now: str, was: str) -> None:
        if is_now != was:
            raise InputError(
                f"store file {self.directory / entry.file} was edited or damaged: its checksum "
                f"does not agree with the manifest; {self._remedy}"
            )

    def _refuse_unlike(self) -> None:
        if fault := self.manifest.unlike_given():
            raise InputError(f"store {self.directory}: {fault}; partition the graph again")

    @property
    def _remedy(self) -> str:
        return "stage it again (--overwrite)" if self.staged else "write the store again"

    def _refuse(self, entry: ArrayEntry, fault: str) -> None:
        if fault:
            raise InputError(f"store file {self.directory / entry.file} cannot be of a graph: "
                             f"{fault}; write the store again")

    def _is_here(self, entry: ArrayEntry) -> bool:
        return self.staged is None or entry.file in self.staged.files

    def _check_here(self, entry: ArrayEntry) -> None:
        if not self._is_here(entry):
            raise InputError(
                f"store file {self.directory / entry.file} is not on this machine: the store was "
                f"staged for {self.staged}, where it is not read; stage it with --also and the "
                "name of its relation or node type, or use the whole store")

    def _check_size(self, entry: ArrayEntry) -> None:
        path = self.directory / entry.file
        try:
            size = path.stat().st_size
        except OSError:
            raise InputError(f"store file {path} is missing; {self._remedy}") from None
        if size != entry.bytes:
            raise InputError(
                f"store file {path} has {size} bytes, but the manifest says {entry.bytes}: it was "
                f"truncated or edited; {self._remedy}"
            )

    def _open(self, entry: ArrayEntry, pieces: bool = False) -> np.ndarray:
        if not pieces and self.staged is not None and self.staged.files.get(entry.file):
            raise InputError(
                f"only pieces of store file {self.directory / entry.file} are on this machine: the "
                f"store was staged for {self.staged}; stage it with --also and the name of its "
                "relation, or use the whole store")
        if self._verify_opened and entry.file not in self._verified:
            for _ in self.compared(entry):
                pass
        return self._mapped(entry)

    def _mapped(self, entry: ArrayEntry) -> np.ndarray:
        self._check_here(entry)
        path = self.directory / entry.file
        try:
            array = np.lib.format.open_memmap(path, mode="r")  # never unpickles
        except Exception as error:  # NumPy's parser raises almost anything at a damaged header
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"store file {path} is damaged: {reason}") from None
        if array.dtype.str != entry.dtype or array.shape != entry.shape:
            raise InputError(
                f"store file {path} holds {array.dtype.str}{list(array.shape)}, but the manifest "
                f"says {entry.dtype}{list(entry.shape)}; write the store again"
            )
        if not array.flags.c_contiguous or array.offset + array.nbytes != entry.bytes:
            raise InputError(f"store file {path} is damaged: its header puts the rows in another "
                             "place than they were written to; write the store again")
        with contextlib.suppress(OSError):
            self._mapped_files[entry.file] = entry, _identity(path)
            if _identity(self.directory / FILE_NAME) != self._opened and (
                    Manifest.load(self.directory).checksum != self.manifest.checksum):
                raise InputError(f"store {self.directory} was written again since it was opened; "
                                 "open it again")
        return array


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def short_files(directory: str | Path) -> list[str]:
    """Files of a store that are shorter than its manifest says, with both sizes; none where the
    manifest cannot be read."""
    notes = []
    try:
        entries = Manifest.load(directory).entries()
    except InputError:
        return []
    for entry in entries:
        path = Path(directory) / entry.file
        with contextlib.suppress(OSError):
            if (size := path.stat().st_size) < entry.bytes:
                notes.append(f"{path} ({size} of {entry.bytes} bytes)")
    return notes
