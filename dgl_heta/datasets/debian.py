"""The Debian package archive as a heterogeneous graph: predict the section of a package.

A frozen snapshot is part of the package, so :func:`load` needs no network. It is built by
`scripts/build_debian_snapshot.py` from the records that `apt-cache dumpavail` prints.

Node types and forward relations; each has a reverse `rev-…`:

- package `depends` (with Pre-Depends), `recommends`, `suggests`, `enhances` and `conflicts`
  (with Breaks) package. Every alternative of `a | b` counts; versions and architecture
  qualifiers are ignored, names that are not in the archive too.
- package `provides` and `depends-virtual` virtual: a virtual package is a name in Provides
  that at least two packages provide or depend on. A dependency on a name that is a real
  package too is a `depends` edge only.
- package `built-from` source, `maintained-by` maintainer, `tagged` tag, and `homepage-at`
  site: the host of the homepage, where at least two packages have it.

Only packages have static features: 128 signed hash buckets of the words of the synopsis
(tf-idf, unit length) and eight standardised numbers (sizes, numbers of dependencies).
Labels are sections without their area (`non-free/net` is `net`). Packages of a section with
fewer than 100 packages or fewer than 20 sources keep their node with label -1, in no mask.
All packages of a source are in the same split, drawn from a hash of the name of the source.

What keeps the section out of the inputs:

- No name is stored or hashed, except those of the classes and tags. Node ids are in the
  order of a hash of the name, so neighbours in id say nothing either.
- From a synopsis the words of the package's own name, of its source and of all section
  names are taken out, also what these abbreviate (development, library, go), and the
  longer description is not read.
- Priority, Multi-Arch and fields that only one language has (Ghc-Package, Ruby-Versions)
  are not read.
- Tag facets that say what a section says are left out: role, devel, made-of,
  implemented-in, and every facet named like a section (game, mail, sound, …).
- A word, tag or site restates a section when at least 80 % of its packages are in one
  section (10 packages or more); it is left out. All labels decide this, those of the test
  split too, which can only make the task harder.

What remains is honest signal: a package that depends on the Perl interpreter, or that a
team for Haskell maintains, can be told by its edges; combinations of words tell much too.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dgl_heta.errors import InputError
from dgl_heta.graph import EdgeArrays, EdgeSource, GraphSource, Task
from dgl_heta.schema import Relation

SNAPSHOT = Path(__file__).parent / "data" / "debian.npz"
FORMAT = "dgl-heta debian snapshot 1"
WORD_BUCKETS = 128
DROPPED_FACETS = frozenset({"section", "role", "devel", "made-of", "implemented-in"})
# What the names of sections abbreviate; the names themselves come from the records.
SPELLED_OUT = frozenset({
    "administration", "communication", "communications", "development", "documentation", "go",
    "libraries", "library", "mathematics", "miscellaneous", "network", "networking",
    "utilities", "utility",
})

PACKAGE_FIELDS = {
    "depends": ("Pre-Depends", "Depends"),
    "recommends": ("Recommends",),
    "suggests": ("Suggests",),
    "enhances": ("Enhances",),
    "conflicts": ("Conflicts", "Breaks"),
}
SPLITS = ("train_mask", "val_mask", "test_mask")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9+.-]*")
_WORD = re.compile(r"[a-z][a-z0-9+#]+")
_HOST = re.compile(r"https?://(?:[^/@]*@)?(?:www\.)?([^/:?#\s]+)", re.IGNORECASE)
_ADDRESS = re.compile(r"<([^>]+)>")
_BROKEN_FILE = (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, RuntimeError,
                MemoryError, zipfile.BadZipFile, zlib.error, struct.error)


@dataclass(frozen=True)
class Rules:
    """What is too small to keep, and what restates a section."""

    class_packages: int = 100
    class_sources: int = 20
    word_packages: int = 3
    shared_by: int = 2
    judged_packages: int = 10
    restating_share: float = 0.8


# -- reading records ---------------------------------------------------------------------


def parse_records(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the paragraphs of a control file as field: value, without further checks.

    Folded lines stay separate lines of the value. Comments and lines that are neither a
    field nor the continuation of one are skipped.
    """
    record: dict[str, str] = {}
    field = None
    for line in lines:
        line = line.rstrip()
        if not line:
            if record:
                yield record
            record, field = {}, None
        elif line[0] in " \t":
            if field is not None:
                record[field] += "\n" + line.strip()
        elif not line.startswith("#"):
            name, colon, value = line.partition(":")
            field = name if colon and " " not in name else None
            if field is not None:
                record[field] = value.strip()
    if record:
        yield record


def named_packages(record: dict[str, str], fields: Iterable[str]) -> list[str]:
    """The names in dependency fields, each once, in order: `a (>= 1) | b:any, c` → a, b, c."""
    names: dict[str, None] = {}
    for field in fields:
        for part in re.split(r"[,|]", record.get(field, "")):
            match = _NAME.match(part.strip())
            if match:
                names[match[0]] = None
    return list(names)


def section(record: dict[str, str]) -> str:
    """The section without its area: `contrib/net` is `net`."""
    return record["Section"].rsplit("/", 1)[-1].strip().lower()


def source_name(record: dict[str, str]) -> str:
    words = record.get("Source", "").split()
    return words[0] if words else record["Package"]


def tags(record: dict[str, str]) -> list[str]:
    """The debtags of a record; placeholders such as `culture::TODO` are left out."""
    found = (tag.strip() for tag in record.get("Tag", "").split(","))
    return sorted({tag for tag in found if "::" in tag and not tag.lower().endswith("::todo")})


def words(record: dict[str, str], forbidden: frozenset[str] = frozenset()) -> list[str]:
    """The words of the synopsis without those of the package's own name, sorted."""
    text = record.get("Description") or record.get("Description-en") or ""
    own = _name_words(record["Package"]) | _name_words(source_name(record))
    found = {word.rstrip("0123456789") for word in _WORD.findall(text.split("\n")[0].lower())}
    return sorted(word for word in found
                  if len(word) > 1 and word not in own and word not in forbidden)


def _name_words(name: str) -> set[str]:
    """Words that a name is made of: `libfoo-bar2-dev` → foo, bar, dev, libfoo, foobar, …"""
    parts = [part.rstrip("0123456789") for part in re.split(r"[^a-z0-9+#]+", name.lower())]
    joined = "".join(parts)
    return {form for part in [*parts, joined] for form in (part, part.removeprefix("lib"))}


def _section_words(sections: Iterable[str]) -> frozenset[str]:
    """Section names, their parts, and these with and without a plural s."""
    parts = {part for name in sections for part in [name, *re.split(r"[^a-z0-9]+", name)]}
    stems = {part.removesuffix("s") for part in parts if len(part) > 1}
    return SPELLED_OUT | stems | {stem + "s" for stem in stems} | parts


def _hash(text: str, purpose: bytes) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=purpose).digest()
    return int.from_bytes(digest, "little")


# -- building ----------------------------------------------------------------------------


def build(records: Iterable[dict[str, str]], rules: Rules | None = None, *,
          date: str = "", release: str = "") -> dict[str, np.ndarray]:
    """Turn records into the arrays of a snapshot, see :func:`write` and :func:`load`.

    Records without Package or Section are skipped, of several with one name the first
    counts. The result depends on the set of records only, not on their order.

    Raises
    ------
    InputError
        No records, or no section that is large enough for a class.
    """
    rules = rules or Rules()
    by_name: dict[str, dict[str, str]] = {}
    for record in records:
        if record.get("Package") and record.get("Section"):
            by_name.setdefault(record["Package"], record)
    if not by_name:
        raise InputError("there are no package records (fields Package and Section)")
    packages = [by_name[name] for name in _hashed_order(by_name)]
    ids = {record["Package"]: i for i, record in enumerate(packages)}

    classes, label = _classes(packages, rules)
    split = _split(packages, label)
    sections = {section(record) for record in packages}

    relations: dict[Relation, tuple[np.ndarray, np.ndarray]] = {}
    node_counts = {"package": len(packages)}
    for etype, fields in PACKAGE_FIELDS.items():
        named = [[ids[name] for name in named_packages(record, fields)
                  if name in ids and ids[name] != i] for i, record in enumerate(packages)]
        relations[Relation("package", etype, "package")] = _pairs(named)

    def link(etype: str, ntype: str, names: list[list[str]], known: list[str]) -> None:
        position = {name: i for i, name in enumerate(known)}
        node_counts[ntype] = len(known)
        relations[Relation("package", etype, ntype)] = _pairs(
            [[position[name] for name in row if name in position] for row in names])

    provided = [named_packages(record, ["Provides"]) for record in packages]
    wanted = [[name for name in named_packages(record, PACKAGE_FIELDS["depends"])
               if name not in ids] for record in packages]
    virtual = _virtual(provided, wanted, rules)
    link("provides", "virtual", provided, virtual)
    link("depends-virtual", "virtual", wanted, virtual)

    sources = [[source_name(record)] for record in packages]
    link("built-from", "source", sources, _hashed_order({row[0] for row in sources}))
    people = [_maintainer(record) for record in packages]
    link("maintained-by", "maintainer", people, _hashed_order({n for row in people for n in row}))
    all_tags = [[tag for tag in tags(record) if not _restating_facet(tag, sections)]
                for record in packages]
    kept_tags = sorted(_telling(all_tags, label, rules, rules.judged_packages))
    link("tagged", "tag", all_tags, kept_tags)
    sites = [_site(record) for record in packages]
    link("homepage-at", "site", sites, _hashed_order(_telling(sites, label, rules,
                                                              rules.shared_by)))

    forbidden = _section_words(sections)
    texts = [words(record, forbidden) for record in packages]
    arrays = _hashed_words(texts, _telling(texts, label, rules, rules.word_packages))
    degrees = [np.bincount(relations[Relation("package", etype, "package")][0],
                           minlength=len(packages)) for etype in PACKAGE_FIELDS]
    arrays["numbers"] = _numbers(packages, degrees, [len(row) for row in provided])
    arrays["label"] = label.astype(np.int16)
    arrays["split"] = split

    kept = {relation: pairs for relation, pairs in relations.items() if len(pairs[0])}
    ends = {ntype for relation in kept for ntype in (relation.src, relation.dst)}
    for i, (src, dst) in enumerate(kept.values()):
        arrays[f"degree_{i}"] = _small(np.bincount(src, minlength=len(packages)))
        arrays[f"dst_{i}"] = _small(dst)
    meta = {
        "format": FORMAT, "date": date, "release": release, "classes": classes,
        "tags": kept_tags,
        "node_counts": {t: n for t, n in node_counts.items() if t in ends},
        "relations": [[*relation, len(src)] for relation, (src, _) in kept.items()],
    }
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), dtype=np.uint8)
    return arrays


def _hashed_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (_hash(name, b"order"), name))


def _classes(packages: list[dict[str, str]], rules: Rules) -> tuple[list[str], np.ndarray]:
    """Class names and the class of each package, -1 where its section is too small."""
    named = [section(record) for record in packages]
    size = Counter(named)
    spread = Counter(s for s, _ in {(section(r), source_name(r)) for r in packages})
    classes = sorted(s for s in size
                     if size[s] >= rules.class_packages and spread[s] >= rules.class_sources)
    if not classes:
        raise InputError(
            f"none of {len(size)} sections has {rules.class_packages} packages of "
            f"{rules.class_sources} sources, the least for a class; the archive is too small")
    position = {name: i for i, name in enumerate(classes)}
    return classes, np.array([position.get(name, -1) for name in named], dtype=np.int64)


def _split(packages: list[dict[str, str]], label: np.ndarray) -> np.ndarray:
    """1 train, 2 validation, 3 test by source (60, 20 and 20 %); 0 without a label."""
    draws = np.array([_hash(source_name(record), b"split") % 100 for record in packages])
    split = 1 + (draws >= 60).astype(np.uint8) + (draws >= 80).astype(np.uint8)
    return np.where(label < 0, 0, split).astype(np.uint8)


def _pairs(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Edges from row numbers to their entries, sorted and each once."""
    edges = [(i, j) for i, row in enumerate(rows) for j in sorted(set(row))]
    src, dst = np.array(edges, dtype=np.int64).reshape(-1, 2).T
    return src, dst


def _virtual(provided: list[list[str]], wanted: list[list[str]], rules: Rules) -> list[str]:
    """Names in Provides that enough packages provide or depend on."""
    users: Counter[str] = Counter()
    for gives, needs in zip(provided, wanted, strict=True):
        users.update({*gives, *needs})
    names = {name for row in provided for name in row}
    return _hashed_order(name for name in names if users[name] >= rules.shared_by)


def _maintainer(record: dict[str, str]) -> list[str]:
    """The address of the maintainer, or the name where there is no address."""
    text = record.get("Maintainer", "").strip()
    match = _ADDRESS.search(text)
    return [(match[1] if match else text).strip().lower()] if text else []


def _site(record: dict[str, str]) -> list[str]:
    match = _HOST.match(record.get("Homepage", ""))
    return [match[1].lower()] if match else []


def _restating_facet(tag: str, sections: set[str]) -> bool:
    facet = tag.split("::")[0]
    return facet in DROPPED_FACETS or facet in sections or facet + "s" in sections


def _telling(rows: list[list[str]], label: np.ndarray, rules: Rules, least: int) -> set[str]:
    """The entries of at least `least` packages that do not restate a section."""
    users: Counter[str] = Counter()
    in_class: Counter[tuple[str, int]] = Counter()
    for row, cls in zip(rows, label.tolist(), strict=True):
        users.update(row)
        if cls >= 0:
            in_class.update((name, cls) for name in row)
    labelled: Counter[str] = Counter()
    largest: Counter[str] = Counter()
    for (name, _), count in in_class.items():
        labelled[name] += count
        largest[name] = max(largest[name], count)
    return {name for name, count in users.items() if count >= least and not (
        labelled[name] >= rules.judged_packages
        and largest[name] >= rules.restating_share * labelled[name])}


def _hashed_words(texts: list[list[str]], known: set[str]) -> dict[str, np.ndarray]:
    """Sparse rows of signed hash buckets, weighted by rarity and scaled to ±127."""
    users = Counter(word for text in texts for word in text)
    weight = {}
    for word in known:
        bits = _hash(word, b"word")
        sign = 1 if bits >> 32 & 1 else -1
        weight[word] = (bits % WORD_BUCKETS, sign * math.log(len(texts) / users[word] + 1))
    degree, columns, values = [], [], []
    for text in texts:
        row: dict[int, float] = {}
        for word in text:
            if word in weight:
                column, value = weight[word]
                row[column] = row.get(column, 0.0) + value
        scale = 127 / max((abs(v) for v in row.values()), default=1.0)
        scaled = [(c, round(v * scale)) for c, v in sorted(row.items())] if row else []
        scaled = [(c, v) for c, v in scaled if v]
        degree.append(len(scaled))
        columns += [c for c, _ in scaled]
        values += [v for _, v in scaled]
    return {"word_degree": np.array(degree, np.uint8), "word_column": np.array(columns, np.uint8),
            "word_value": np.array(values, np.int8)}


def _numbers(packages: list[dict[str, str]], degrees: list[np.ndarray],
             provided: list[int]) -> np.ndarray:
    """Log sizes and log numbers of dependencies, standardised; a missing size is average."""
    columns = [np.array([_whole(record, field) for record in packages])
               for field in ("Size", "Installed-Size")]
    table = np.ma.masked_invalid(
        np.log1p(np.stack([*columns, *degrees, np.array(provided)], axis=1).astype(float)))
    spread = np.ma.filled(table.std(axis=0), 0.0)
    table = (table - table.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    return np.ma.filled(table, 0.0).astype(np.float16)


def _whole(record: dict[str, str], field: str) -> float:
    value = record.get(field, "")
    return float(value) if value.isascii() and value.isdigit() else math.nan


def _small(values: np.ndarray) -> np.ndarray:
    return values.astype(np.min_scalar_type(int(values.max(initial=0))))


# -- the snapshot ------------------------------------------------------------------------


def write(path: Path, arrays: dict[str, np.ndarray]) -> int:
    """Write a snapshot under a temporary name, then rename it; return its bytes."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return path.stat().st_size


def load(path: Path | None = None) -> GraphSource:
    """The graph of a snapshot, by default the one in the package.

    Raises
    ------
    InputError
        The file is missing, truncated or not a snapshot.
    """
    path = Path(path) if path is not None else SNAPSHOT
    try:
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("it holds a single array")
        with file:
            arrays = {name: file[name] for name in file.files}
        return _source(arrays)
    except FileNotFoundError:
        raise InputError(f"Debian snapshot {path} does not exist") from None
    except InputError as error:
        raise InputError(f"Debian snapshot {path}: {error}") from None
    except _BROKEN_FILE as error:
        raise InputError(f"cannot read Debian snapshot {path}, it is damaged or not a "
                         f"snapshot: {error}") from None


def _source(arrays: dict[str, np.ndarray]) -> GraphSource:
    meta = json.loads(arrays["meta"].tobytes()) if "meta" in arrays else {}
    if meta.get("format") != FORMAT:
        raise InputError(f"its format is {meta.get('format')!r}; it must be {FORMAT!r}")
    counts: dict[str, int] = meta["node_counts"]
    classes: list[str] = meta["classes"]
    packages = counts["package"]

    forward: dict[Relation, EdgeSource] = {}
    backward: dict[Relation, EdgeSource] = {}
    for i, (src_type, etype, dst_type, edges) in enumerate(meta["relations"]):
        src = _rows(arrays[f"degree_{i}"], counts[src_type])
        dst = arrays[f"dst_{i}"].astype(np.int32)
        if not len(src) == len(dst) == edges:
            raise InputError(f"relation '{etype}' has {len(dst)} edges; it must have {edges}")
        _check_range(f"relation '{etype}'", dst, 0, counts[dst_type])
        forward[Relation(src_type, etype, dst_type)] = EdgeArrays(src, dst)
        backward[Relation(dst_type, f"rev-{etype}", src_type)] = EdgeArrays(dst, src)

    label = arrays["label"].astype(np.int64)
    split = arrays["split"]
    for name in ("label", "split", "numbers"):
        if len(arrays[name]) != packages:
            raise InputError(f"'{name}' has {len(arrays[name])} rows; it must have {packages}")
    _check_range("label", label, -1, len(classes))
    package: dict[str, np.ndarray] = {"feat": _features(arrays, packages), "label": label}
    package |= {name: split == i + 1 for i, name in enumerate(SPLITS)}
    info: dict[str, Any] = {
        "description": "packages of the Debian archive and what their records name; "
                       "the label is the section",
        "release": meta["release"], "date": meta["date"], "packages": packages,
        "classes": classes, "tags": meta["tags"],
    }
    source = GraphSource("debian", dict(counts), forward | backward, {"package": package},
                         Task("package", len(classes)), info)
    source.schema()
    return source


def _rows(degree: np.ndarray, rows: int) -> np.ndarray:
    if degree.shape != (rows,):
        raise InputError(f"an array of degrees has shape {degree.shape}; it must be ({rows},)")
    return np.repeat(np.arange(rows, dtype=np.int32), degree)


def _features(arrays: dict[str, np.ndarray], packages: int) -> np.ndarray:
    rows = _rows(arrays["word_degree"], packages)
    columns = arrays["word_column"]
    _check_range("word_column", columns, 0, WORD_BUCKETS)
    hashed = np.zeros((packages, WORD_BUCKETS), dtype=np.float32)
    hashed[rows, columns] = arrays["word_value"]
    hashed /= np.maximum(np.linalg.norm(hashed, axis=1, keepdims=True), 1)
    return np.concatenate([hashed, arrays["numbers"].astype(np.float32)], axis=1)


def _check_range(name: str, values: np.ndarray, low: int, high: int) -> None:
    if len(values) and not (low <= values.min() and values.max() < high):
        raise InputError(f"{name} has values from {values.min()} to {values.max()}; they must "
                         f"be at least {low} and below {high}")
