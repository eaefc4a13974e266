"""Files here or in object storage, by one interface: that of pathlib.

Object storage is fsspec's: `s3://`, `gs://`, `hdfs://`, `http://` and whatever else it has a
package for. Keys and endpoints come from where that package looks for them (the environment, a
profile, the machine's role); we neither read nor write them.
"""

from __future__ import annotations

import io
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path, PosixPath
from typing import Any, TypeVar

from dgl_heta.errors import HetaError, InputError

BLOCK = 2**22  # bytes that are read at a time
_FEWEST = 2**16
"""Bytes of a request, at least: a header or a footer in one."""
_AT_ONCE = 16
_SLASHES = ":\1\1"
"""What stands for `://`, of which pathlib would leave one slash."""
F = TypeVar("F")
T = TypeVar("T")


class RemotePath(PosixPath):
    """A file or directory in object storage: as much of a Path as reading one needs, and whole
    files to write.

    What asks storage raises InputError where that is not allowed, and HetaError where storage does
    not answer; both name the URL. What takes it for the name of a file of this machine raises
    InputError.
    """

    _known: dict[str, Any] | None = None

    @classmethod
    def of(cls, url: str) -> RemotePath:
        """The path of a URL, not looked at yet.

        Raises
        ------
        InputError
            No package knows its scheme, or a password is in it, which would come into stores.
        """
        if re.match(r"[^/]*://[^/@]*:[^/@]*@", url):
            raise InputError("a URL has a password in it; give that where the package for its "
                             "scheme looks for it, such as the environment")
        if url.startswith(("file:", "local:")):
            raise InputError(f"{url} is on this machine; give its path, without {url[:7]}")
        path = cls(url.rstrip("/").replace("://", _SLASHES, 1))
        path._storage()
        return path

    def __str__(self) -> str:
        return super().__str__().replace(_SLASHES, "://")

    def __fspath__(self) -> str:
        raise InputError(f"{self} is in object storage, and this is read from a disk only; copy it "
                         "here")

    def exists(self, **_: Any) -> bool:
        return self._entry() is not None

    def is_file(self, **_: Any) -> bool:
        return (self._entry() or {}).get("type") == "file"

    def is_dir(self, **_: Any) -> bool:
        return (self._entry() or {}).get("type") == "directory"

    def stat(self, **_: Any) -> os.stat_result:
        entry = self._entry()
        if entry is None:
            raise InputError(f"there is no {self}")
        mode = stat.S_IFDIR if entry["type"] == "directory" else stat.S_IFREG
        if entry["size"] is None and mode == stat.S_IFREG:
            raise HetaError(f"cannot read {self}: storage does not say how large it is")
        return os.stat_result((mode, *[0] * 5, entry["size"] or 0, *[0] * 3))

    def open(self, mode: str = "rb", buffering: int = -1, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        """Open it to be read as bytes, by ranges of at least `buffering`."""
        if mode != "rb":
            raise InputError(f"{self} is in object storage, whose bytes are only read")
        return io.BufferedReader(_Ranges(self), max(buffering, _FEWEST))

    def iterdir(self) -> Iterator[RemotePath]:  # type: ignore[override]
        files, path = self._storage()
        with _told(self):
            listed = files.ls(path, detail=True)
        for entry in listed:
            child = self / entry["name"].removeprefix(path).strip("/")
            if entry["type"] == "directory" or entry["size"] is not None:
                child._known = entry  # else a request of its own may say the size
            if child != self:
                yield child

    def glob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # type: ignore[override]
        """What a pattern fits; fsspec's own would leave out directories that it fails to list."""
        found = [self]
        for part in pattern.split("/"):
            if part == "**":
                new = found
                while new := [path for path in _in_all(new) if path.is_dir()]:
                    found = found + new
            else:
                found = [path for path in _in_all(found) if fnmatchcase(path.name, part)]
        return iter(found)

    def rglob(self, pattern: str, **_: Any) -> Iterator[RemotePath]:  # type: ignore[override]
        return self.glob(f"**/{pattern}")

    def resolve(self, strict: bool = False) -> RemotePath:
        """The path without `..`, which object storage takes for a name; InputError where that leads
        out of the bucket."""
        path = type(self)(os.path.normpath(super().__str__()))
        if path.parts[:1] != self.parts[:1]:
            raise InputError(f"{self} leads out of its bucket; copy the store beside the partition "
                             "directory, or into it, and say so when you partition")
        return path

    def read_range(self, start: int, stop: int) -> bytes:
        """Its bytes from `start` to `stop`, of which blocks come at the same time."""
        files, path = self._storage()
        starts = [*range(start, stop, BLOCK)]
        ends = [min(at + BLOCK, stop) for at in starts]
        with _told(self):
            pieces = files.cat_ranges([path] * len(starts), starts, ends, on_error="return")
            for error in pieces:
                if isinstance(error, Exception):
                    raise error
        data: bytes = b"".join(pieces)
        if len(data) != stop - start:
            raise HetaError(f"cannot read {self}: of bytes {start:,} to {stop:,} storage gave "
                            f"{len(data):,}; it must answer requests for a range, and the file "
                            "stay as it is while it is read")
        return data

    def put(self, file: Path) -> None:
        """Make it the bytes of a file of this machine."""
        files, path = self._storage()
        with _told(self, "written"):
            files.put_file(str(file), path)
        self._known = None
        if (size := self.stat().st_size) != file.stat().st_size:
            raise HetaError(f"{self} has {size:,} bytes after {file.stat().st_size:,} were written "
                            "to it; nothing else may write there meanwhile")

    def unlink(self, missing_ok: bool = False) -> None:
        files, path = self._storage()
        with _told(self, "removed"):
            try:
                files.rm_file(path)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    def _entry(self) -> dict[str, Any] | None:
        """What storage says of it, asked once; None where it has nothing of that name."""
        if self._known is None:
            files, path = self._storage()
            with _told(self):
                try:
                    self._known = files.info(path)
                except FileNotFoundError as error:
                    # For http whatever goes wrong is no file.
                    if type(error.__cause__).__module__.startswith("aiohttp"):
                        raise error.__cause__ from None  # type: ignore[misc]
                    return None
        return self._known

    def _storage(self) -> tuple[Any, str]:
        """The file system of fsspec, and the path in it."""
        from fsspec.core import url_to_fs

        with _told(self):
            try:
                files, path = url_to_fs(str(self), use_listings_cache=False)
            except (ImportError, ValueError) as error:
                raise InputError(f"cannot read {self}: {error} (for s3:// install dgl-heta[s3])"
                                 ) from None
        return files, path


class _Ranges(io.RawIOBase):
    """The bytes of a file in object storage, a request for each piece that is read."""

    def __init__(self, path: RemotePath) -> None:
        self._path, self._size, self._at = path, path.stat().st_size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at  # which BufferedReader refuses below 0

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), max(self._size - self._at, 0), _AT_ONCE // 2 * BLOCK)
        if count:
            buffer[:count] = self._path.read_range(self._at, self._at + count)
            self._at += count
        return count


def file_path(name: str | Path) -> Path:
    """The path of what a user names by a path or a URL.

    Raises
    ------
    InputError
        No package for the URL's scheme is installed.
    """
    if isinstance(name, str):
        return RemotePath.of(name) if is_remote(name) else Path(name)
    return name


def is_remote(text: str) -> bool:
    """Return whether a user's text is a URL; one with an option before it is none."""
    scheme, slashes, _ = text.partition("://")
    return bool(slashes) and ":" not in scheme


def check_on_disk(path: str | os.PathLike[str], what: str) -> None:
    """Check that a directory that is written on this machine is named by a path.

    Raises
    ------
    InputError
        It is a URL, of whose slashes pathlib may have left one: it would name a directory here.
    """
    if re.match(r"[a-z0-9+]+:/", str(path)):
        raise InputError(f"{what} is {re.sub(':/+', '://', str(path), count=1)}, a URL; this is "
                         "written on a disk: name a directory, and copy it from there")


def blocks(path: Path, start: int = 0) -> Iterator[bytes]:
    """The bytes of a file from `start` on."""
    with path.open("rb") as file:
        file.seek(start)
        while data := file.read(BLOCK):
            yield data


def for_each(function: Callable[[F], T], files: Iterable[F]) -> list[T]:
    """What a function makes of each file, in their order; answers of storage are awaited together.
    """
    files = list(files)
    if len(files) < 2:
        return [function(file) for file in files]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(function, files))


def _in_all(paths: list[RemotePath]) -> list[RemotePath]:
    """What lies in those of the paths that are directories."""
    listed = for_each(lambda path: [*path.iterdir()], [path for path in paths if path.is_dir()])
    return [path for one in listed for path in one]


@contextmanager
def _told(where: object, use: str = "read") -> Iterator[None]:
    """Errors of storage in a line that names what was asked for; packages raise what they like."""
    try:
        yield
    except HetaError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"there is no {where} ({error})") from None
    except PermissionError as error:
        raise InputError(f"{where} may not be {use}: {error}; look at the credentials and their end"
                         ) from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise HetaError(f"cannot read {where}: {reason}") from error
