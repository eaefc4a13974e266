"""A git repository as a heterogeneous graph: any history is a real graph, without a download.

Node types and forward relations; each has a reverse `rev-…`:

- commit `parent` commit, author `wrote` commit (an author is an address, by the mailmap),
- commit `touched` file: what it added, changed or deleted; merges touch nothing,
- file `in` folder, folder `within` folder,
- commit `mentions` word: words of the subject that three commits or more have.

Edges at a commit carry its time as edge data (`time`, seconds since 1970), commits as a node array.
Commits (time, parents, length of the subject) and files (how often and when they were touched,
depth) have features; names of files, folders and authors are in no input. The tasks:

- `target=file`: the kind of a file, by the ending of its name.
- `target=commit`: the sub-system of a commit, the topmost folder that most of its files are in.
  Files would tell it, so the later half of the commits has labels and touches nothing, and the
  earlier half has files and no labels. Words that sub-systems are named by are left out.

Classes with fewer than `least` members have label -1. Splits are 60, 20 and 20 %, by a hash of the
path or of the commit's name.
"""

from __future__ import annotations

from pathlib import Path

from dgl_heta import GraphSource, InputError
from dgl_heta_datasets.git.building import TARGETS, Builder
from dgl_heta_datasets.git.log import read_log

__all__ = ["load"]


def load(path: str | Path = ".", target: str = "file", revision: str = "HEAD",
         commits: int | None = None, least: int = 10) -> GraphSource:
    """The history of a repository.

    Parameters
    ----------
    path : a directory in the repository.
    target : `file` or `commit`.
    revision : where the history ends: a branch, a tag, a commit.
    commits : at most so many, the latest; None: all.
    least : members of a class.

    Raises
    ------
    InputError
        No repository, no such revision, a history without commits or with fewer than two classes.
    """
    if target not in TARGETS:
        raise InputError(f"the target is '{target}'; it must be file or commit")
    path = Path(path)
    builder, head = Builder(), ""
    for commit in read_log(path, revision, commits):
        head = head or commit.name
        builder.add(commit)
    if not head:
        raise InputError(f"revision '{revision}' of '{path}' leads to no commits")
    name = path.resolve().name.removesuffix(".git") or "git"
    source = builder.source(name, target, least, {
        "description": "the history of a git repository", "path": str(path), "revision": head})
    source.schema()
    return source
