"""The data set `git`: a small history whose graph is known, and what is refused."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from dgl_heta_datasets import Git, git
from dgl_heta_datasets.git.building import kind, system
from dgl_heta_datasets.git.log import read_log

from dgl_heta.errors import InputError
from dgl_heta.graph.datasets import load_dataset
from dgl_heta.graph.schema import Relation
from dgl_heta.graph.source import MASKS

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")

DAY = 86_400
START = 1_600_000_000


class Repository:
    """A repository in a directory, whose commits have given authors and times."""

    def __init__(self, path: Path) -> None:
        self.path, self.commits = path, 0
        path.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str, **env: str) -> str:
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
        return subprocess.run(
            ["git", "-C", str(self.path), *words], check=True, capture_output=True, text=True,
            env={**clean, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
                 **env}).stdout.strip()

    def commit(self, subject: str, author: str, *files: str, merge: str | None = None) -> str:
        when = f"{START + DAY * self.commits} +0000"
        for file in files:
            (self.path / file).parent.mkdir(parents=True, exist_ok=True)
            (self.path / file).write_text(f"{self.commits}\n")
        self.git("add", "-A")
        who = {"GIT_AUTHOR_NAME": author, "GIT_AUTHOR_EMAIL": f"{author}@Example.org",
               "GIT_COMMITTER_NAME": author, "GIT_COMMITTER_EMAIL": f"{author}@example.org",
               "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
        self.commits += 1
        if merge:
            self.git("merge", "-q", "--no-ff", "-m", subject, merge, **who)
        else:
            self.git("commit", "-q", "--allow-empty", "-m", subject, **who)
        return self.git("rev-parse", "HEAD")


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Repository:
    """Six commits, the last but one a merge of the one before."""
    repository = Repository(tmp_path_factory.mktemp("git") / "small.git")
    repository.commit("Begin parser", "ann", "src/a.py", "src/deep/b.py", "README.md")
    repository.commit("Begin docs", "bob", "docs/x.md", "docs/ä \"y\".md", "Makefile")
    repository.git("checkout", "-q", "-b", "side")
    repository.commit("Begin tests of parser", "ann", "tests/t.py", "src/deep/b.py")
    repository.git("checkout", "-q", "main")
    repository.commit("parser: say more", "bob", "src/a.py")
    repository.commit("Merge side", "bob", merge="side")
    repository.commit("docs docs parser", "ann", "docs/x.md")
    return repository


def edges(source, *relation: str) -> list[tuple[int, int]]:
    chunks = source.edges[Relation(*relation)].chunks(3)
    return [pair for src, dst in chunks for pair in zip(src.tolist(), dst.tolist())]


def test_the_log_is_read_commit_by_commit(repository):
    commits = list(read_log(repository.path))
    assert [c.subject for c in commits] == [
        "docs docs parser", "Merge side", "parser: say more", "Begin tests of parser",
        "Begin docs", "Begin parser"]
    assert [c.author for c in commits[:2]] == ["ann@example.org", "bob@example.org"]
    assert [len(c.parents) for c in commits] == [1, 2, 1, 1, 1, 0]
    assert commits[1].files == []
    assert commits[3].files == ["src/deep/b.py", "tests/t.py"]
    assert [c.time for c in commits] == [START + DAY * n for n in (5, 4, 3, 2, 1, 0)]


def test_paths_are_as_they_are_in_the_tree(repository):
    """Also those that git writes in quotes."""
    paths = {file for commit in read_log(repository.path) for file in commit.files}
    assert paths == set(repository.git("-c", "core.quotePath=false", "ls-tree", "-rz",
                                       "--name-only", "HEAD").strip("\0").split("\0"))


def test_the_graph_of_a_small_history(repository):
    source = git.load(repository.path, least=2)
    assert source.name == "small"
    assert source.node_counts == {"commit": 6, "author": 2, "file": 7, "folder": 5, "word": 2}
    # Commits are numbered from the earliest on, files and folders as they come in the log.
    assert sorted(edges(source, "commit", "parent", "commit")) == [
        (1, 0), (2, 1), (3, 1), (4, 2), (4, 3), (5, 4)]
    assert sorted(edges(source, "author", "wrote", "commit")) == [
        (0, 0), (0, 2), (0, 5), (1, 1), (1, 3), (1, 4)]
    files = ["docs/x.md", "src/a.py", "src/deep/b.py", "tests/t.py"]
    touched = edges(source, "commit", "touched", "file")
    assert len(touched) == 10
    assert {(c, f) for c, f in touched if c in (2, 3, 5)} == {
        (5, 0), (3, 1), (2, 2), (2, 3)}
    assert len(edges(source, "file", "in", "folder")) == 7
    assert len(edges(source, "folder", "within", "folder")) == 4  # src, deep, docs, tests
    # `begin` and `parser` are in three commits or more; `docs`, twice in one, in two.
    assert sorted(edges(source, "commit", "mentions", "word")) == [
        (0, 0), (0, 1), (1, 1), (2, 0), (2, 1), (3, 0), (5, 0)]
    for relation in list(source.edges)[::2]:
        back = Relation(relation.dst, f"rev-{relation.etype}", relation.src)
        assert edges(source, *back) == [(v, u) for u, v in edges(source, *relation)]
    assert source.task is not None
    assert (source.task.target, source.task.num_classes) == ("file", 2)
    assert source.info["classes"] == ["md", "py"]
    label = source.node_arrays["file"]["label"]
    assert label[:len(files)].tolist() == [0, 1, 1, 1]
    assert sorted(label.tolist()) == [-1, 0, 0, 0, 1, 1, 1]
    masks = [source.node_arrays["file"][name].astype(int) for name in MASKS]
    assert np.sum(masks, 0).tolist() == (label >= 0).astype(int).tolist()


def test_times_are_on_edges_and_commits(repository):
    source = git.load(repository.path, least=2)
    times = source.node_arrays["commit"]["time"]
    assert times.tolist() == [START + DAY * n for n in range(6)]
    for etype, end in (("parent", 0), ("touched", 0), ("mentions", 0), ("wrote", 1)):
        (relation,) = [r for r in source.edges if r.etype == etype]
        back = Relation(relation.dst, f"rev-{etype}", relation.src)
        ends = np.array(edges(source, *relation)).T[end]
        for one in (relation, back):
            np.testing.assert_array_equal(source.edge_arrays[one]["time"], times[ends])


def test_sub_systems_are_told_without_the_files_of_labelled_commits(repository):
    source = git.load(repository.path, "commit", least=1)
    assert source.task is not None
    assert source.task.target == "commit"
    assert source.info["classes"] == ["docs", "src"]
    assert source.node_arrays["commit"]["label"].tolist() == [-1, -1, -1, 1, -1, 0]
    assert max(c for c, _ in edges(source, "commit", "touched", "file")) == 2
    assert source.node_counts["word"] == 2  # `docs` and `src` name classes; neither has three


def test_it_is_named_on_the_command_line_by_its_path(repository):
    source = load_dataset(Git(), f"{repository.path},target=commit,least=1")
    assert source.task is not None
    assert source.task.target == "commit"
    assert source.node_counts["commit"] == 6


def test_a_history_may_be_cut(repository):
    source = git.load(repository.path, least=1, commits=4)
    assert source.node_counts["commit"] == 4
    assert sorted(edges(source, "commit", "parent", "commit")) == [(2, 0), (2, 1), (3, 2)]
    assert git.load(repository.path, least=1, revision="side").node_counts["commit"] == 3


@pytest.mark.parametrize(("file", "ending", "top"), [
    ("a/b.PY", "py", "a"), ("Makefile", "makefile", "."), ("x/.gitignore", ".gitignore", "x"),
    ("a.tar.gz", "gz", "."), ("odd.", "odd.", ".")])
def test_kinds_and_sub_systems(file, ending, top):
    assert (kind(file), system(file)) == (ending, top)


def test_what_is_no_history_is_refused(repository, tmp_path):
    with pytest.raises(InputError, match="git log failed for revision 'HEAD' of .*not a git repo"):
        git.load(tmp_path)
    with pytest.raises(InputError, match="failed for revision 'nowhere'"):
        git.load(repository.path, revision="nowhere")
    with pytest.raises(InputError, match="failed for revision '--all'"):
        git.load(repository.path, revision="--all")
    with pytest.raises(InputError, match="git log failed.*HEAD"):
        git.load(Repository(tmp_path / "empty").path)
    with pytest.raises(InputError, match="target is 'author'; it must be file or commit"):
        git.load(repository.path, "author")
    with pytest.raises(InputError, match=r"kinds of files \(makefile, md, py\), 0 have 9 members"):
        git.load(repository.path, least=9)


def test_without_git_it_says_so(repository, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(InputError, match="git cannot be started, which data set 'git' needs"):
        git.load(repository.path)


def test_variables_of_a_hook_do_not_lead_elsewhere(repository, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    assert git.load(repository.path, least=2).node_counts["commit"] == 6


@pytest.mark.parametrize("when", ["18446744073709551614", "9" * 5000, "99999999999999999999"])
def test_a_time_that_no_clock_shows_is_unknown(tmp_path, when):
    repository = Repository(tmp_path / "odd")
    for number in range(3):
        repository.commit(f"commit {number}", "ann", f"a{number}.py", f"b{number}.md")
    text = repository.git("cat-file", "commit", "HEAD")
    odd = subprocess.run(
        ["git", "-C", str(repository.path), "hash-object", "-t", "commit", "-w", "--literally",
         "--stdin"], check=True, capture_output=True, text=True,
        input=text.replace(str(START + DAY * 2), when) + "\n").stdout.strip()
    assert next(read_log(repository.path, odd)).time == 0
    source = load_dataset(Git(), f"{repository.path},revision={odd},least=1")
    assert source.node_counts["commit"] == 3
