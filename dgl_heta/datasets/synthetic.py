"""Seeded synthetic graphs with the shapes of the data sets in Table 1 of the Heta paper.

The counts are those of the published data sets; where a data set publishes totals only
(Freebase, Donor) the split over types and relations is noted at the shape. The content is
made up, but not meaningless:

* Every node, of every type, belongs to a hidden community; a class is a group of
  communities. The label of a target node is the class of its community, except that 5 % of
  the labels are drawn at random.
* A relation has a `signal`: the share of its edges that join a community to itself. Another
  `related` share joins it to one confusable community of another class (a different one for
  every relation), and the rest is noise. Relations thus differ in how much they tell, and
  none tells all.
* Features are noisy mixtures of the prototypes of class and community. They are too noisy to
  tell the class alone: accuracy grows with every informative relation that a model uses.
* At one end of a relation (the hub) nodes are picked by a power law of popularity, at the
  other end degrees are log-normal. No edge occurs twice, no node is joined to itself, and a
  reverse relation is the exact transpose, in the same edge order.

Small scales: counts shrink in proportion, but a type keeps at least 8 nodes and a relation at
least one edge (fewer than the proportional number where the ends would be joined to more than
half of each other). At least 5,000 target nodes, or all of them, are labelled, and there are
at most `labelled / 50` classes (at least 2), so that every class can be learned.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.format import dtype_to_descr, write_array_header_1_0

from dgl_heta.errors import HetaError, InputError, nearest
from dgl_heta.graph import EdgeArrays, EdgeSource, GraphSource, Task
from dgl_heta.schema import Relation, Schema

MIN_NODES = 8
MIN_LABELLED = 5_000
NODES_PER_CLASS = 50
COMMUNITIES = 512        # aimed at in total; a class has at least one
LABEL_NOISE = 0.05
CLASS_SKEW = 0.3         # class sizes fall as rank ** -CLASS_SKEW
LATENT = 48              # dimensions that features are mixed from
BLOCK_EDGES = 1 << 20    # edges made at a time
BLOCK_VALUES = 1 << 24   # feature values made at a time


@dataclass(frozen=True)
class NodeShape:
    """A node type: `count` nodes with `dim` features (0: none).

    `strength` says how much features tell of the class; at 1 a class can just be told from
    the others by features alone.
    """

    count: int
    dim: int = 0
    strength: float = 0.5


@dataclass(frozen=True)
class RelationShape:
    """A relation and what it tells.

    Parameters
    ----------
    src, etype, dst : the relation.
    edges : number of edges; of a symmetric relation, both directions together.
    hub : `"src"` or `"dst"`: the end that is picked by popularity.
    signal, related : shares of edges within a community and to the confusable community.
    skew : popularity of the k-th node of a community falls as `k ** -skew`, 0 <= skew < 1;
        the tail exponent of the degree distribution is `1 + 1 / skew`.
    spread : sigma of the log-normal degrees at the other end.
    reverse : name of the reverse relation, or None.
    symmetric : holds both directions of every edge; `src` and `dst` are the same type.
    """

    src: str
    etype: str
    dst: str
    edges: int
    hub: str = "dst"
    signal: float = 0.3
    related: float = 0.1
    skew: float = 0.6
    spread: float = 0.7
    reverse: str | None = None
    symmetric: bool = False

    @property
    def forward(self) -> Relation:
        return Relation(self.src, self.etype, self.dst)

    @property
    def ends(self) -> tuple[str, str]:
        """The node types at the other end and at the hub."""
        return (self.src, self.dst) if self.hub == "dst" else (self.dst, self.src)

    def relations(self) -> Iterator[Relation]:
        """The relation, and its reverse if it has one."""
        yield self.forward
        if self.reverse:
            yield Relation(self.dst, self.reverse, self.src)


@dataclass(frozen=True)
class Shape:
    """Types, relations and task of a data set.

    `labelled` target nodes are in one of the masks, in the shares `split` of training,
    validation and test; all target nodes have a label.
    """

    name: str
    nodes: dict[str, NodeShape]
    relations: tuple[RelationShape, ...]
    target: str
    num_classes: int
    labelled: int
    split: tuple[float, float, float] = (0.6, 0.2, 0.2)
    dtype: str = "float32"

    @property
    def communities_per_class(self) -> int:
        room = self.nodes[self.target].count // (20 * self.num_classes)
        return max(1, min(round(COMMUNITIES / self.num_classes), room))

    def scaled(self, scale: float) -> Shape:
        """This shape with all counts multiplied by `scale` (see the module's docstring)."""
        if isinstance(scale, bool) or not isinstance(scale, int | float) \
                or not math.isfinite(scale) or scale <= 0:
            raise InputError(f"scale is {scale!r}; it must be a number above 0, such as 0.01")
        nodes = {t: replace(n, count=max(MIN_NODES, round(n.count * scale)))
                 for t, n in self.nodes.items()}
        relations = []
        for relation in self.relations:
            other, hub = (nodes[t].count for t in relation.ends)
            edges = max(1, round(relation.edges * scale / (1 + relation.symmetric)))
            edges = min(edges, other * _degree_cap(hub, relation.symmetric))
            relations.append(replace(relation, edges=edges * (1 + relation.symmetric)))
        target = nodes[self.target].count
        labelled = min(target, max(round(self.labelled * scale), MIN_LABELLED))
        classes = min(self.num_classes, max(2, labelled // NODES_PER_CLASS))
        return replace(self, nodes=nodes, relations=tuple(relations), labelled=labelled,
                       num_classes=classes)

    def schema(self) -> Schema:
        edges = {name: r.edges for r in self.relations for name in r.relations()}
        width = np.dtype(self.dtype).itemsize
        return Schema({t: n.count for t, n in self.nodes.items()}, edges,
                      {t: n.dim * width for t, n in self.nodes.items() if n.dim})


def _degree_cap(hub_nodes: int, symmetric: bool) -> int:
    """Most edges of one node, so that enough distinct partners are left to choose from."""
    return max(1, hub_nodes // (4 if symmetric else 2))


def _mag() -> Shape:
    """ogbn-mag, exact counts; `cites` holds both directions of its 5,416,271 citations."""
    return Shape(
        "mag",
        {"author": NodeShape(1_134_649), "field": NodeShape(59_965),
         "institution": NodeShape(8_740), "paper": NodeShape(736_389, 128, 1.1)},
        (RelationShape("author", "affiliated", "institution", 1_043_998, skew=0.7, spread=0.4,
                       signal=0.3, reverse="rev-affiliated"),
         RelationShape("author", "writes", "paper", 7_145_660, hub="src", signal=0.2, skew=0.6,
                       reverse="rev-writes"),
         RelationShape("paper", "has_topic", "field", 7_505_078, signal=0.1, skew=0.8,
                       spread=0.4, reverse="rev-has_topic"),
         RelationShape("paper", "cites", "paper", 10_832_542, signal=0.2, skew=0.6, spread=1.0,
                       symmetric=True)),
        target="paper", num_classes=349, labelled=736_389, split=(0.85, 0.09, 0.06))


def _freebase() -> Shape:
    """Freebase: 36 kinds of links, of which 28 join two types (and have a reverse) and 8 stay
    in a type (both directions in one relation): 28 * 2 + 8 = 64 relations.

    Totals (12,164,758 nodes, 2 * 62,982,566 edges, 47,190 labelled books) are the published
    ones. The nodes per type follow the proportions of the small Freebase of the HGB benchmark,
    so do `book-and-book` and `music-and-music`; other links are split by the sizes of their
    ends.
    """
    total, links, small = 12_164_758, 62_982_566, 180_098
    parts = {"book": 40_402, "film": 19_427, "music": 82_351, "sports": 1_025, "people": 17_641,
             "location": 9_368, "organization": 2_731, "business": 7_153}
    counts = {t: round(n * total / small) for t, n in parts.items()}
    counts["music"] += total - sum(counts.values())
    names = [f"{t}-and-{t}" for t in parts] + (
        "book-to-film music-in-book people-to-book book-on-location book-on-sports "
        "book-about-organization business-about-book music-in-film people-to-film "
        "location-in-film sports-in-film organization-in-film business-about-film "
        "people-to-music music-on-location music-for-sports organization-to-music "
        "business-about-music people-to-sports sports-on-location organization-to-sports "
        "business-about-sports people-on-location people-in-organization people-in-business "
        "organization-on-location business-on-location organization-for-business").split()
    ends = {name: (name.split("-")[0], name.split("-")[2]) for name in names}
    known = {"book-and-book": 202_674, "music-and-music": 283_670}
    edges = {name: round(n * links / 1_057_688) for name, n in known.items()}
    weights = {name: math.sqrt(counts[a] * counts[b])
               for name, (a, b) in ends.items() if name not in known}
    rest, weight = links - sum(edges.values()), sum(weights.values())
    edges.update({name: int(rest * w / weight) for name, w in weights.items()})
    edges["people-to-music"] += links - sum(edges.values())
    relations = []
    for index, name in enumerate(names):
        src, dst = ends[name]
        same = src == dst
        relations.append(RelationShape(
            src, name, dst, edges[name] * (1 + same), skew=0.7,
            hub="src" if counts[src] < counts[dst] else "dst",
            signal=(0.8, 0.3, 0.7, 0.1)[index % 4],
            reverse=None if same else f"rev-{name}", symmetric=same))
    return Shape("freebase", {t: NodeShape(n) for t, n in counts.items()}, tuple(relations),
                 target="book", num_classes=8, labelled=47_190)


def _donor() -> Shape:
    """Donor: the tables of KDD Cup 2014 (DonorsChoose) with a relation per foreign key.

    Totals, classes and the range of feature dimensions are those of Table 1, which does not
    split them: donors and dimensions are set such that nodes, edges and bytes agree with it.
    """
    projects = 664_098
    return Shape(
        "donor",
        {"project": NodeShape(projects, 35, 0.8), "school": NodeShape(57_004, 20, 0.8),
         "teacher": NodeShape(249_555, 7, 0.8), "resource": NodeShape(3_667_217, 789, 0.8),
         "donation": NodeShape(3_097_989, 776, 0.8), "donor": NodeShape(1_282_092, 9, 0.8),
         "essay": NodeShape(projects, 768, 1.0)},
        (RelationShape("resource", "requested_by", "project", 3_667_217, signal=0.3, skew=0.5,
                       reverse="rev-requested_by"),
         RelationShape("donation", "given_to", "project", 3_097_989, signal=0.5, skew=0.6,
                       reverse="rev-given_to"),
         RelationShape("donation", "given_by", "donor", 3_097_989, signal=0.6, skew=0.7,
                       reverse="rev-given_by"),
         RelationShape("essay", "describes", "project", projects, signal=0.7, skew=0.1,
                       reverse="rev-describes"),
         RelationShape("essay", "written_by", "teacher", projects, signal=0.5, skew=0.5,
                       reverse="rev-written_by"),
         RelationShape("project", "located_at", "school", projects, signal=0.5, skew=0.6,
                       reverse="rev-located_at"),
         RelationShape("project", "posted_by", "teacher", projects, signal=0.8, skew=0.5,
                       reverse="rev-posted_by")),
        target="project", num_classes=2, labelled=619_326)


def _igb_het() -> Shape:
    """IGB-HET (medium). Table 1 counts one self-loop per paper; they are citations here."""
    papers = 10_000_000
    return Shape(
        "igb-het",
        {"paper": NodeShape(papers, 1024, 1.1), "author": NodeShape(15_544_654, 1024, 0.6),
         "institute": NodeShape(23_256, 1024, 0.6), "fos": NodeShape(415_054, 1024, 0.6)},
        (RelationShape("paper", "cites", "paper", 2 * 120_077_694 + papers, signal=0.15,
                       skew=0.6, spread=1.0, symmetric=True),
         RelationShape("paper", "written_by", "author", 39_854_592, signal=0.5, skew=0.6,
                       reverse="rev-written_by"),
         RelationShape("paper", "topic", "fos", 68_510_495, signal=0.15, skew=0.8, spread=0.4,
                       reverse="rev-topic"),
         RelationShape("author", "affiliated_to", "institute", 11_049_412, signal=0.3, skew=0.7,
                       spread=0.4, reverse="rev-affiliated_to")),
        target="paper", num_classes=2983, labelled=papers)


def _mag240m() -> Shape:
    """MAG240M, exact counts; `cites` holds both directions of its 1,297,748,926 citations."""
    return Shape(
        "mag240m",
        {"paper": NodeShape(121_751_666, 768, 1.1), "author": NodeShape(122_383_112),
         "institution": NodeShape(25_721)},
        (RelationShape("paper", "cites", "paper", 2 * 1_297_748_926, signal=0.3, skew=0.6,
                       spread=1.0, symmetric=True),
         RelationShape("author", "writes", "paper", 386_022_720, hub="src", signal=0.6,
                       skew=0.6, reverse="rev-writes"),
         RelationShape("author", "affiliated_with", "institution", 44_592_586, signal=0.3,
                       skew=0.7, spread=0.4, reverse="rev-affiliated_with")),
        target="paper", num_classes=153, labelled=1_398_159, split=(0.8, 0.1, 0.1),
        dtype="float16")


SHAPES: dict[str, Shape] = {
    shape.name: shape for shape in (_mag(), _freebase(), _donor(), _igb_het(), _mag240m())}


def _scaled(name: str, scale: float) -> Shape:
    if name not in SHAPES:
        raise InputError(f"shape '{name}' is unknown; shapes: {', '.join(SHAPES)}"
                         + nearest(str(name), SHAPES))
    return SHAPES[name].scaled(scale)


def shape_schema(name: str, scale: float = 1.0) -> Schema:
    """The schema that :func:`generate` would produce, without generating anything."""
    return _scaled(name, scale).schema()


def generate(shape: str, scale: float = 1.0, seed: int = 0) -> GraphSource:
    """Make a graph in memory; equal arguments give equal graphs.

    Parameters
    ----------
    shape : a key of :data:`SHAPES`.
    scale : multiplies the counts of nodes, edges and labelled nodes.
    seed : every type and relation has a random stream of its own, derived from the seed, the
        shape and its name.

    Raises
    ------
    InputError
        An unknown shape, a scale that is not above 0, or a negative seed.
    """
    maker = _Maker(_scaled(shape, scale), seed)
    edges: dict[Relation, EdgeSource] = {}
    for relation in maker.shape.relations:
        ends = np.empty((2, relation.edges), maker.id_dtype(relation))
        for start, src, dst in maker.edges(relation):
            ends[0, start:start + len(src)] = src
            ends[1, start:start + len(src)] = dst
        for name, (src, dst) in zip(relation.relations(), (ends, ends[::-1])):
            edges[name] = EdgeArrays(src, dst)
    arrays: dict[str, dict[str, np.ndarray]] = {}
    for ntype, node in maker.shape.nodes.items():
        own = arrays.setdefault(ntype, {})
        if node.dim:
            own["feat"] = np.empty((node.count, node.dim), maker.shape.dtype)
            for start, block in maker.features(ntype):
                own["feat"][start:start + len(block)] = block
        if ntype == maker.shape.target:
            own.update(maker.target_arrays())
    return GraphSource(
        f"synthetic-{shape}", {t: n.count for t, n in maker.shape.nodes.items()}, edges,
        {t: own for t, own in arrays.items() if own},
        Task(maker.shape.target, maker.shape.num_classes),
        {"origin": "synthetic", "shape": shape, "scale": scale, "seed": seed})


def write_files(shape: str, scale: float, seed: int, out: str | Path) -> Path:
    """Write the graph of :func:`generate` as a directory of `.npy` files; return its path.

    The directory holds `metadata.json`, `nodes/TYPE/ARRAY.npy` and
    `edges/SRC__ETYPE__DST.npy` of shape (2, edges). Files are filled block by block: apart
    from the hidden communities (8 bytes per node) memory does not grow with the graph. The
    directory appears under its name only when it is complete.

    Raises
    ------
    InputError
        As :func:`generate`, or `out` exists.
    HetaError
        `out` cannot be written.
    """
    maker = _Maker(_scaled(shape, scale), seed)
    out = Path(out)
    if out.exists() or out.is_symlink():
        raise InputError(f"{out} exists; name a directory that does not exist yet")
    partial = out.parent / f".{out.name}.{os.getpid()}.partial"
    try:
        partial.mkdir(parents=True)
        metadata = {
            "name": f"synthetic-{shape}",
            "nodes": _write_nodes(maker, partial),
            "edges": _write_edges(maker, partial),
            "task": {"target": maker.shape.target, "num_classes": maker.shape.num_classes,
                     "label": "label"},
        }
        (partial / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n",
                                               encoding="utf-8")
        partial.rename(out)
    except OSError as error:
        raise HetaError(f"cannot write {out}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def _write_nodes(maker: _Maker, root: Path) -> dict[str, Any]:
    nodes: dict[str, Any] = {}
    for ntype, node in maker.shape.nodes.items():
        folder = f"nodes/{ntype}"
        files: dict[str, str] = {}
        if node.dim or ntype == maker.shape.target:
            (root / folder).mkdir(parents=True)
        if node.dim:
            files["feat"] = f"{folder}/feat.npy"
            with _NpyFile(root / files["feat"], (node.count, node.dim),
                          maker.shape.dtype) as feat:
                for start, block in maker.features(ntype):
                    feat.put(start * node.dim, block)
        if ntype == maker.shape.target:
            for name, array in maker.target_arrays().items():
                files[name] = f"{folder}/{name}.npy"
                np.save(root / files[name], array)
        nodes[ntype] = {"count": node.count, "arrays": files}
    return nodes


def _write_edges(maker: _Maker, root: Path) -> list[dict[str, Any]]:
    (root / "edges").mkdir()
    entries = []
    for relation in maker.shape.relations:
        with ExitStack() as stack:
            tables = []
            for name in relation.relations():
                file = f"edges/{name.src}__{name.etype}__{name.dst}.npy"
                entries.append({"src": name.src, "etype": name.etype, "dst": name.dst,
                                "files": [file]})
                tables.append(stack.enter_context(_NpyFile(
                    root / file, (2, relation.edges), maker.id_dtype(relation))))
            for start, src, dst in maker.edges(relation):
                for table, (first, second) in zip(tables, ((src, dst), (dst, src))):
                    table.put(start, first)
                    table.put(relation.edges + start, second)
    return entries


class _NpyFile:
    """A `.npy` file that is written piece by piece, so that no page of it stays mapped."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: Any) -> None:
        self.dtype = np.dtype(dtype)
        self.file = path.open("wb")
        write_array_header_1_0(self.file, {"descr": dtype_to_descr(self.dtype),
                                           "fortran_order": False, "shape": shape})
        self.start = self.file.tell()

    def put(self, position: int, values: np.ndarray) -> None:
        """Write `values` from flat element `position` on."""
        self.file.seek(self.start + position * self.dtype.itemsize)
        self.file.write(np.ascontiguousarray(values, self.dtype).data)

    def __enter__(self) -> _NpyFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()


@dataclass(frozen=True)
class _Members:
    """Communities of the nodes of one type.

    `order` lists the nodes by community, the most popular first; the nodes of community `c`
    are `order[first[c]:first[c] + size[c]]`. A type with few nodes has communities without
    any: those take nodes of the communities around them (mostly of the same class).
    """

    community: np.ndarray
    order: np.ndarray
    first: np.ndarray
    size: np.ndarray


class _Maker:
    """Makes the parts of one graph, each from a random stream of its own."""

    def __init__(self, shape: Shape, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
            raise InputError(f"seed is {seed!r}; it must be a whole number, 0 or more")
        self.shape = shape
        self.seed = int(seed)
        self.per_class = shape.communities_per_class
        self.communities = shape.num_classes * self.per_class
        self._members: dict[str, _Members] = {}

    def stream(self, *part: str) -> np.random.Generator:
        key = " ".join((self.shape.name, *part)).encode()
        return np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, *key])))

    def id_dtype(self, relation: RelationShape) -> type[np.signedinteger[Any]]:
        most = max(self.shape.nodes[t].count for t in (relation.src, relation.dst))
        return np.int32 if most <= np.iinfo(np.int32).max else np.int64

    @cached_property
    def class_ends(self) -> np.ndarray:
        """Upper ends of the classes' shares of [0, 1), the same in every type."""
        weights = np.arange(1, self.shape.num_classes + 1) ** -CLASS_SKEW
        ends = np.cumsum(self.stream("classes").permutation(weights))
        return ends / ends[-1]

    def draw_classes(self, rng: np.random.Generator, count: int) -> np.ndarray:
        return np.searchsorted(self.class_ends[:-1], rng.random(count), side="right")

    def members(self, ntype: str) -> _Members:
        if ntype not in self._members:
            rng = self.stream("members", ntype)
            count = self.shape.nodes[ntype].count
            small = np.int32 if count <= np.iinfo(np.int32).max else np.int64
            community = self.draw_classes(rng, count) * self.per_class
            community += rng.integers(self.per_class, size=count)
            community = community.astype(np.int32)
            shuffled = rng.permutation(np.arange(count, dtype=small))
            order = shuffled[np.argsort(community[shuffled], kind="stable")]
            size = np.bincount(community, minlength=self.communities)
            first = np.cumsum(size) - size
            least = min(count, 4)
            few = size < least
            first[few] = np.clip(first[few] - (least - size[few]) // 2, 0, count - least)
            size[few] = least
            self._members[ntype] = _Members(community, order, first, size)
        return self._members[ntype]

    def target_arrays(self) -> dict[str, np.ndarray]:
        """Label and masks of the target type."""
        shape = self.shape
        rng = self.stream("labels")
        label = self.members(shape.target).community.astype(np.int64) // self.per_class
        wrong = np.flatnonzero(rng.random(len(label), dtype=np.float32) < LABEL_NOISE)
        label[wrong] = self.draw_classes(rng, len(wrong))
        arrays = {"label": label}
        chosen = rng.permutation(len(label))[:shape.labelled]
        val_from = round(shape.labelled * shape.split[0])
        test_from = round(shape.labelled * (shape.split[0] + shape.split[1]))
        parts = np.split(chosen, [val_from, test_from])
        for name, rows in zip(("train_mask", "val_mask", "test_mask"), parts):
            arrays[name] = np.zeros(len(label), bool)
            arrays[name][rows] = True
        return arrays

    def features(self, ntype: str) -> Iterator[tuple[int, np.ndarray]]:
        """Yield `(first node, float32 rows)` of features with mean about 0, variance about 1.

        A latent vector, prototype plus unit noise, is mixed into all dimensions, as in text
        embeddings, whose dimensions are far from independent.
        """
        node = self.shape.nodes[ntype]
        rng = self.stream("features", ntype)
        latent = min(LATENT, node.dim)
        unit = 1 / math.sqrt(latent)
        classes = rng.normal(0, unit, (self.shape.num_classes, latent))
        own = rng.normal(0, unit, (self.communities, latent))
        prototypes = np.repeat(classes, self.per_class, axis=0) + (
            0.5 * own if self.per_class > 1 else 0.0)
        # Unit noise hides one of C random unit vectors when they are shorter than this.
        length = node.strength * math.sqrt(2 * math.log(self.shape.num_classes))
        prototypes = (prototypes * length).astype(np.float32)
        mixing = rng.normal(0, unit, (latent, node.dim)).astype(np.float32)
        community = self.members(ntype).community
        rows = max(1, BLOCK_VALUES // node.dim)
        for start in range(0, node.count, rows):
            chosen = prototypes[community[start:start + rows]]
            chosen += rng.standard_normal(chosen.shape, dtype=np.float32)
            block = chosen @ mixing
            noise = rng.random(block.shape, dtype=np.float32)
            noise -= 0.5
            block += noise
            yield start, block

    def edges(self, relation: RelationShape) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """Yield `(position of the first edge, sources, destinations)`."""
        start = 0
        for other, hub in self.edge_blocks(relation):
            src, dst = (other, hub) if relation.hub == "dst" else (hub, other)
            yield start, src, dst
            if relation.symmetric:
                yield relation.edges // 2 + start, dst, src
            start += len(src)

    def degrees(self, relation: RelationShape, rng: np.random.Generator) -> np.ndarray:
        """Edges per node of the end that is not the hub; they sum up exactly."""
        other, hub = (self.shape.nodes[t].count for t in relation.ends)
        edges = relation.edges // (1 + relation.symmetric)
        least = min(1, edges // other)
        weights = np.cumsum(rng.lognormal(0, relation.spread, other))
        degrees = least + _shares(weights, edges - least * other)
        cap = _degree_cap(hub, relation.symmetric)
        surplus = int(np.maximum(degrees - cap, 0).sum())
        if surplus:
            degrees = np.minimum(degrees, cap)
            degrees += _shares(np.cumsum(cap - degrees, dtype=np.float64), surplus)
        return degrees

    def edge_blocks(self, relation: RelationShape) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Distinct pairs (other end, hub) in order of the other end, block by block."""
        rng = self.stream("edges", *relation.forward)
        ends = np.cumsum(self.degrees(relation, rng))
        # The confusable community is always of another class.
        shift = int(rng.integers(1, self.shape.num_classes)) * self.per_class
        first = done = 0
        while first < len(ends):
            last = max(first + 1, int(np.searchsorted(ends, done + BLOCK_EDGES, side="right")))
            degrees = np.diff(ends[first:last], prepend=done)
            keys = self.distinct_pairs(relation, rng, shift, first, degrees)
            hubs = self.shape.nodes[relation.ends[1]].count
            other = keys // hubs
            yield other + first, keys - other * hubs
            first, done = last, int(ends[last - 1])

    def distinct_pairs(self, relation: RelationShape, rng: np.random.Generator, shift: int,
                       first: int, degrees: np.ndarray) -> np.ndarray:
        """Sorted keys `(node - first) * hubs + hub`, `degrees[i]` of node `first + i`.

        Pairs that occur already are drawn again, in the end without regard to communities,
        and by trying all nodes where even that does not find enough.
        """
        hubs = self.shape.nodes[relation.ends[1]].count
        rows = np.arange(len(degrees))
        keys = np.empty(0, np.int64)
        missing = degrees
        for attempt in range(16):
            nodes = np.repeat(rows, missing)
            if not len(nodes):
                return keys
            if attempt < 10:
                drawn = self.draw_hubs(relation, rng, shift, nodes + first)
            else:
                drawn = rng.integers(hubs, size=len(nodes))
            if relation.symmetric:
                fits = _oriented(nodes + first, drawn)
                nodes, drawn = nodes[fits], drawn[fits]
            new = np.unique(nodes * hubs + drawn)
            if len(keys):
                place = np.minimum(np.searchsorted(keys, new), len(keys) - 1)
                new = new[keys[place] != new]
            missing = missing - np.bincount(new // hubs, minlength=len(degrees))
            keys = np.sort(np.concatenate([keys, new]), kind="stable")
        everyone = np.arange(hubs)
        for row in np.flatnonzero(missing):
            free = everyone[_oriented(first + row, everyone)] if relation.symmetric else everyone
            low, high = np.searchsorted(keys, [row * hubs, (row + 1) * hubs])
            free = np.setdiff1d(free, keys[low:high] - row * hubs, assume_unique=True)
            chosen = rng.choice(free, missing[row], replace=False)
            keys = np.insert(keys, low, row * hubs + chosen)
            keys[low:high + len(chosen)].sort()
        return keys

    def draw_hubs(self, relation: RelationShape, rng: np.random.Generator, shift: int,
                  nodes: np.ndarray) -> np.ndarray:
        """A hub for each of the nodes, by community and popularity."""
        other, hub = (self.members(t) for t in relation.ends)
        wanted = other.community[nodes]
        kind = rng.random(len(nodes), dtype=np.float32)
        related = np.flatnonzero((kind >= relation.signal)
                                 & (kind < relation.signal + relation.related))
        wanted[related] = (wanted[related] + shift) % self.communities
        noise = np.flatnonzero(kind >= relation.signal + relation.related)
        wanted[noise] = hub.community[rng.integers(len(hub.community), size=len(noise))]
        size = hub.size[wanted]
        rank = rng.random(len(nodes), dtype=np.float32) ** np.float32(1 / (1 - relation.skew))
        return hub.order[hub.first[wanted] + np.minimum((rank * size).astype(np.int64), size - 1)]


def _oriented(node: np.ndarray | int, other: np.ndarray) -> np.ndarray:
    """Whether the pair is to be drawn from `node`.

    Of (a, b) and (b, a) exactly one is, and about half of all partners are left to every
    node. So no edge is drawn from both ends, although the blocks do not know of each other.
    """
    return np.where((node + other) % 2 == 1, other < node, other > node)


def _shares(ends: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers in proportion to the steps of the cumulative weights, adding to `total`."""
    return np.diff(np.floor(ends / ends[-1] * total).astype(np.int64), prepend=0)
