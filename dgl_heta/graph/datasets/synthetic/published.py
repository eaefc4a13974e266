"""The shapes of the published data sets, see Table 1 of the Heta paper."""

from __future__ import annotations

import math

from dgl_heta.errors import InputError, nearest
from dgl_heta.graph.datasets.synthetic.shapes import NodeShape, RelationShape, Shape
from dgl_heta.graph.schema import Schema


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


def scaled_shape(name: str | Shape, scale: float) -> Shape:
    """A shape, or a published one by name, scaled; an unknown name is an `InputError`."""
    if isinstance(name, Shape):
        return name.scaled(scale)
    if name not in SHAPES:
        raise InputError(f"shape '{name}' is unknown; shapes: {', '.join(SHAPES)}"
                         + nearest(str(name), SHAPES))
    return SHAPES[name].scaled(scale)


def shape_schema(name: str, scale: float = 1.0) -> Schema:
    """The schema that :func:`generate` would produce, without generating anything."""
    return scaled_shape(name, scale).schema()
