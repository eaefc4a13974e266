"""Put known mistakes into a copy of dgl-heta, one at a time, and see that tests notice each.

The mistakes are in scripts/mutations/: a text that stands in one place of dgl_heta/ or of the
plugins, what stands there instead, and the tests that must fail then. The tree itself is never
changed.

    python scripts/mutate.py                          # all, an hour on two cores
    python scripts/mutate.py device                   # those of one file, mutations/device.toml
    python scripts/mutate.py --only links-without-order signs-of-packed-ids
    python scripts/mutate.py --dry-run                # is every text still there, exactly once?
    python scripts/mutate.py --unchanged              # do the tests pass without a mistake?

The exit status is 0 if all mistakes are noticed, but for those of which their file says why they
change nothing; 1 if one is not, 2 for wrong input.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
TABLES = Path(__file__).with_name("mutations")
PACKAGES = ("dgl_heta", "plugins/*/dgl_heta_*")
LIMIT_S = 900.0


@dataclass(frozen=True)
class Mutation:
    """A mistake: `old`, which is in one file of the packages once, becomes `new`. Of one that
    changes nothing `unseen` says why."""

    id: str
    file: str
    old: str
    new: str
    breaks: str
    tests: tuple[str, ...]
    unseen: str = ""


@dataclass(frozen=True)
class Outcome:
    """What the tests of a mutation did."""

    id: str
    file: str
    outcome: str
    by: str
    seconds: float


class WrongInput(Exception):
    """What the table or the command line has wrong."""


def read_tables(name: str | None, path: Path | None) -> list[Mutation]:
    """Read the mutations of a file, of one of that name, or of all."""
    paths = [path] if path else sorted(TABLES.glob(f"{name or '*'}.toml"))
    if not paths:
        there = ", ".join(path.stem for path in sorted(TABLES.glob("*.toml")))
        raise WrongInput(f"there are no mutations '{name}', but {there}")
    mutations = [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for path in paths
                 for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutation"]]
    ids = [mutation.id for mutation in mutations]
    if twice := {id for id in ids if ids.count(id) > 1}:
        raise WrongInput(f"{', '.join(sorted(twice))} is there more than once")
    return mutations


def find(mutation: Mutation, root: Path) -> Path:
    """Return the file of the packages that has the text of a mutation.

    Raises
    ------
    WrongInput
        It is nowhere, or in more than one place.
    """
    counts = {path: path.read_text(encoding="utf-8").count(mutation.old)
              for package in PACKAGES for above in sorted(root.glob(package))
              for path in ([above] if above.is_file() else sorted(above.rglob("*.py")))}
    there = {path: count for path, count in counts.items() if count}
    if sum(there.values()) != 1:
        where = ", ".join(str(path.relative_to(root)) for path in there) or "no file"
        raise WrongInput(f"{mutation.id}: its text is in {where} ({sum(there.values())} times), "
                         f"but must be once in the packages (it was in {mutation.file}): "
                         f"{mutation.old!r}")
    return next(iter(there))


def check(mutations: Sequence[Mutation], root: Path) -> list[str]:
    """Return what is wrong with mutations: texts that are not there, or changes that are none."""
    faults = []
    for mutation in mutations:
        try:
            find(mutation, root)
        except WrongInput as error:
            faults.append(str(error))
        if mutation.new == mutation.old:
            faults.append(f"{mutation.id}: its new text is the old one")
        for test in mutation.tests:
            if "/" in test and not (root / test.partition("::")[0]).exists():
                faults.append(f"{mutation.id}: there is no {test}")
    return faults


def copy_tree(root: Path, copy: Path) -> None:
    """Copy what git has of a tree, and what it does not ignore; and compiled kernels, which numba
    finds again by the time and the size of their file."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root,
        check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name)
    for kernels in (root / "dgl_heta").rglob("__pycache__/*.nb[ic]"):
        target = copy / kernels.relative_to(root)
        target.parent.mkdir(exist_ok=True)
        shutil.copy2(kernels, target)


def run_tests(copy: Path, tests: Sequence[str], limit_s: float) -> tuple[str, str]:
    """Run tests in a copy; returns the outcome and the first test that failed."""
    plugins = [str(path.parent) for path in copy.glob("plugins/*/pyproject.toml")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(
        [str(copy), *plugins, *filter(None, [os.environ.get("PYTHONPATH")])])}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider",
               "--tb=line", *tests]
    process = subprocess.Popen(command, cwd=copy, env=environment, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        text, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "caught", f"(a test that hangs: over {limit_s:.0f} s)"
    if process.returncode == 1:
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", text, re.MULTILINE)
        return "caught", failed[1] if failed else "?"
    return ("not caught" if process.returncode == 0 else "broken"), text[-2000:]


def try_mutation(mutation: Mutation, copy: Path, limit_s: float, unchanged: bool) -> Outcome:
    """Put a mutation into a copy, run its tests, and take it out again."""
    file, started = find(mutation, copy), time.monotonic()
    before, times = file.read_text(encoding="utf-8"), file.stat()
    if not unchanged:
        file.write_text(before.replace(mutation.old, mutation.new), encoding="utf-8")
    try:
        outcome, by = run_tests(copy, mutation.tests, limit_s)
    finally:
        file.write_text(before, encoding="utf-8")
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    return Outcome(mutation.id, str(file.relative_to(copy)), outcome, by,
                   round(time.monotonic() - started, 1))


def chosen(mutations: Sequence[Mutation], ids: Sequence[str] | None) -> list[Mutation]:
    """Return the mutations with these ids, all if there are none."""
    known = {mutation.id: mutation for mutation in mutations}
    if unknown := [id for id in ids or () if id not in known]:
        raise WrongInput(f"unknown mutation {unknown[0]}; --list shows all")
    return [known[id] for id in ids] if ids else list(mutations)


def run(mutations: Sequence[Mutation], args: argparse.Namespace) -> list[Outcome]:
    """Try mutations one after the other, with a line for each."""
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="heta-mutations-", dir=args.work_dir) as directory:
        copy = Path(directory) / "tree"
        copy_tree(args.tree, copy)
        for mutation in mutations:
            outcome = try_mutation(mutation, copy, args.limit, args.unchanged)
            outcomes.append(outcome)
            by = outcome.by if outcome.outcome == "caught" else ""
            print(f"{outcome.outcome:<10}  {outcome.seconds:>6.1f} s  {outcome.id:<32}  {by}",
                  flush=True)
            if outcome.outcome == "broken":
                print(outcome.by, file=sys.stderr)
    return outcomes


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", metavar="NAME",
                        help="of a file in scripts/mutations (default: all)")
    parser.add_argument("--only", nargs="+", metavar="ID", help="these mutations alone")
    parser.add_argument("--list", action="store_true", help="show them and end")
    parser.add_argument("--dry-run", action="store_true",
                        help="look whether each text is there once, and end")
    parser.add_argument("--unchanged", action="store_true",
                        help="run the tests without the mistakes: all must pass")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the outcomes")
    parser.add_argument("--limit", type=float, default=LIMIT_S, metavar="SECONDS",
                        help="for the tests of a mutation (default: %(default).0f)")
    parser.add_argument("--table", type=Path, metavar="FILE", help="another file of mutations")
    parser.add_argument("--tree", type=Path, default=ROOT, metavar="DIRECTORY",
                        help="what is copied, of git (default: this one)")
    parser.add_argument("--work-dir", type=Path, help="where the copy is made, and removed")
    args = parser.parse_args()
    try:
        mutations = chosen(read_tables(args.name, args.table), args.only)
        if args.list:
            for mutation in mutations:
                print(f"{mutation.id:<32}  {mutation.file:<28}  {mutation.breaks}")
            return 0
        if faults := check(mutations, args.tree):
            raise WrongInput("\n".join(faults))
        if args.dry_run:
            print(f"{len(mutations)} mutations; each text is there once")
            return 0
    except WrongInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    outcomes = run(mutations, args)
    if args.json:
        args.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))
    unseen = {mutation.id for mutation in mutations if mutation.unseen or args.unchanged}
    right = sum(outcome.outcome == ("not caught" if outcome.id in unseen else "caught")
                for outcome in outcomes)
    caught = sum(outcome.outcome == "caught" for outcome in outcomes)
    print(f"{right} of {len(outcomes)} pass without them" if args.unchanged else
          f"{caught} of {len(outcomes)} caught, {right - caught} change nothing")
    return 0 if right == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
