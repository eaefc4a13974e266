"""From package records to the arrays of a snapshot; what is kept and what is left out."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dgl_heta import InputError, Relation
from dgl_heta_datasets.debian.records import (
    maintainer,
    named_packages,
    section,
    section_words,
    site,
    source_name,
    tags,
    words,
)
from dgl_heta_datasets.debian.snapshot import FORMAT, WORD_BUCKETS

DROPPED_FACETS = frozenset({"section", "role", "devel", "made-of", "implemented-in"})
PACKAGE_FIELDS = {
    "depends": ("Pre-Depends", "Depends"),
    "recommends": ("Recommends",),
    "suggests": ("Suggests",),
    "enhances": ("Enhances",),
    "conflicts": ("Conflicts", "Breaks"),
}


@dataclass(frozen=True)
class Rules:
    """Limits: what is too small to keep, and what restates a section."""

    class_packages: int = 100
    class_sources: int = 20
    word_packages: int = 3
    shared_by: int = 2
    judged_packages: int = 10
    restating_share: float = 0.8


def build(records: Iterable[dict[str, str]], rules: Rules | None = None, *,
          date: str = "", release: str = "") -> dict[str, np.ndarray]:
    """Turn records into the arrays of a snapshot, see `snapshot.py` beside this file.

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
    people = [maintainer(record) for record in packages]
    link("maintained-by", "maintainer", people, _hashed_order({n for row in people for n in row}))
    all_tags = [[tag for tag in tags(record) if not _restating_facet(tag, sections)]
                for record in packages]
    kept_tags = sorted(_telling(all_tags, label, rules, rules.judged_packages))
    link("tagged", "tag", all_tags, kept_tags)
    sites = [site(record) for record in packages]
    link("homepage-at", "site", sites, _hashed_order(_telling(sites, label, rules,
                                                              rules.shared_by)))

    forbidden = section_words(sections)
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


def _hash(text: str, purpose: bytes) -> int:
    digest = hashlib.blake2b(text.encode(), digest_size=8, person=purpose).digest()
    return int.from_bytes(digest, "little")


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
