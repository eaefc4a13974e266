"""Directories of files, here or in object storage, behind one interface: names, and bytes from some
place on.

Object storage is fsspec's: `s3://`, `gs://`, `hdfs://`, `http://` and whatever else it has a
package for. Keys and endpoints come from where that package looks for them (the environment, a
profile, the machine's role); we neither read nor write them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dgl_heta.errors import HetaError, InputError

BLOCK = 2**22  # bytes of a request


class FileDirectory(Protocol):
    """Files by their names, `/` between directories."""

    def names(self) -> list[str]:
        """The files that lie in it, not below."""

    def blocks(self, name: str, start: int = 0) -> Iterator[bytes]:
        """The bytes of a file from `start` on."""

    def below(self, path: str) -> FileDirectory:
        """Another directory, by its relative path; `..` leads up."""


@dataclass(frozen=True)
class LocalDirectory:
    """A directory of this machine."""

    path: Path

    def names(self) -> list[str]:
        return [entry.name for entry in self.path.iterdir() if entry.is_file()]

    def blocks(self, name: str, start: int = 0) -> Iterator[bytes]:
        with (self.path / name).open("rb") as file:
            file.seek(start)
            while data := file.read(BLOCK):
                yield data

    def below(self, path: str) -> LocalDirectory:
        return LocalDirectory(self.path / path)


@dataclass(frozen=True)
class RemoteDirectory:
    """A directory in object storage.

    Every method raises InputError where there is nothing of that name or it may not be read, and
    HetaError where storage does not answer; both name the file.
    """

    url: str
    files: Any
    path: str

    @classmethod
    def open(cls, url: str) -> RemoteDirectory:
        """The directory that a URL names; it is not looked at yet.

        Raises
        ------
        InputError
            No package for its scheme is installed.
        """
        with _told(url):
            from fsspec.core import url_to_fs

            try:
                files, path = url_to_fs(url.rstrip("/"))
            except (ImportError, ValueError) as error:
                raise InputError(f"cannot read {url}: {error} (for s3:// install dgl-heta[s3])"
                                 ) from None
        return cls(url.rstrip("/"), files, path)

    def names(self) -> list[str]:
        with _told(self.url):
            listed = self.files.ls(self.path, detail=True)
            return [entry["name"].rpartition("/")[2] for entry in listed
                    if entry["type"] == "file"]

    def blocks(self, name: str, start: int = 0) -> Iterator[bytes]:
        where = f"{self.url}/{name}"
        with _told(where):
            file = self.files.open(f"{self.path}/{name}", "rb", block_size=BLOCK)
        with file:
            while True:
                with _told(where):  # what is raised where the bytes are used is not storage's
                    file.seek(start)
                    data = file.read(BLOCK)
                if not data:
                    return
                yield data
                start += len(data)

    def below(self, path: str) -> RemoteDirectory:
        scheme, _, rest = self.url.partition("://")
        return RemoteDirectory(f"{scheme}://{_joined(rest, path)}", self.files,
                               _joined(self.path, path))


def file_directory(text: str) -> FileDirectory:
    """The directory that a user names by a path or a URL.

    Raises
    ------
    InputError
        No package for the URL's scheme is installed.
    """
    return RemoteDirectory.open(text) if is_remote(text) else LocalDirectory(Path(text))


def is_remote(text: str) -> bool:
    """Return whether a user's text is a URL."""
    return "://" in text


def _joined(path: str, relative: str) -> str:
    """A path without `..`, which object storage takes for a name; InputError where that leads out
    of the bucket."""
    parts = path.split("/")
    for part in relative.split("/"):
        if part == "..":
            if len(parts) < 2:
                raise InputError(f"'{relative}' leads out of {path}; copy the store beside the "
                                 "partition directory, or into it, and say so when you partition")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


@contextmanager
def _told(where: str) -> Iterator[None]:
    """Errors of storage in a line that names what was asked for; packages raise what they like."""
    try:
        yield
    except HetaError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"there is no {where} ({error})") from None
    except PermissionError as error:
        raise InputError(f"{where} may not be read: {error}; look at the credentials and their end"
                         ) from None
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise HetaError(f"cannot read {where}: {reason}") from error
