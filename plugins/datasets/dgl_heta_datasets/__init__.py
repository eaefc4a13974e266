"""Real graphs: the Debian archive, the history of any git repository, large published ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from dgl_heta import Dataset, Reader, hookimpl

if TYPE_CHECKING:
    from dgl_heta import GraphSource

__all__ = ["Debian", "Git"]


class Debian(Dataset):
    """The Debian package archive, a frozen snapshot in this package."""

    name = "debian"
    description = "packages of the Debian archive; target: a package's section"

    def load(self, **options: Any) -> GraphSource:
        from dgl_heta_datasets import debian

        return debian.load()


class Git(Dataset):
    """The history of any git repository."""

    name = "git"
    description = "history of a git repository (git:PATH); target: a file's kind"

    class Options(BaseModel):
        """Options of a repository's graph."""

        path: Path = Field(Path("."), description="a directory in the repository")
        target: str = Field("file", description="file (its kind) or commit (its sub-system)")
        revision: str = Field("HEAD", description="where the history ends: a branch, tag or commit")
        commits: int | None = Field(None, ge=1, description="at most so many, the latest")
        least: int = Field(10, ge=1, description="members of a class, at least")

    options = Options()

    def load(self, **options: Any) -> GraphSource:
        from dgl_heta_datasets import git

        return git.load(**options)


@hookimpl
def dgl_heta_datasets() -> list[Dataset]:
    return [Debian(), Git()]


@hookimpl
def dgl_heta_readers() -> list[Reader]:
    from dgl_heta_datasets.published import Hgb, Igb, Mag240m

    return [Mag240m(), Igb(), Hgb()]
