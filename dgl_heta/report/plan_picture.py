"""A plan as an SVG: the metatree left, a box per partition right."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dgl_heta.planning.cost import PartitionCost
from dgl_heta.planning.partition_shares import Partition, Share
from dgl_heta.planning.plan import Plan
from dgl_heta.report.canvas import GREY, INK, Canvas, fit, text_width
from dgl_heta.report.excerpt import Vertex, balance, heaviest, holders_of, left_out, outline
from dgl_heta.report.text import PALETTE, human_bytes, printable
from dgl_heta.system.atomic_files import write_atomic

_RULE = "#d5dbe1"
_ROW, _PILL, _BAND_HEAD, _GAP = 46, 34, 26, 10
_BOX_WIDTH, _MARGIN = 404, 24
_MAX_TREES, _MAX_BOXES = 8, 8


def svg(plan: Plan, costs: list[PartitionCost]) -> str:
    """The metatree and the partitions as one self-contained SVG.

    Left the metatree, growing from the target to the right: a vertex is a node type, a link
    a relation. Right a box per partition with the relations it runs at each layer. Larger
    plans are condensed to the heaviest sub-metatrees and the first partitions.
    """
    canvas = Canvas()
    canvas.add("title").text = "Metatree and partitions: " + printable(", ".join(plan.targets))
    background = canvas.add("rect", fill="#ffffff")
    body = canvas.add("g")

    left, right = ET.SubElement(body, "g"), ET.SubElement(body, "g")
    canvas.into = left
    tree_width, tree_height = _draw_trees(canvas, plan)
    canvas.into = right
    boxes_width, boxes_height = _draw_boxes(canvas, plan, costs)

    top = _MARGIN + 34
    split = _MARGIN + tree_width + 36
    width = split + boxes_width + _MARGIN
    content = max(tree_height, boxes_height)
    height = top + content + 42
    left.set("transform", f"translate({_MARGIN} {top})")
    right.set("transform", f"translate({split:g} {top})")

    canvas.into = body
    hops = f"{plan.hops} hop{'s' * (plan.hops > 1)}"
    described = f"target {', '.join(plan.targets)}, {hops}, with node and edge counts"
    for x, heading, note, space in (
        (_MARGIN, "Metatree", described, tree_width - 100),
        (split, f"{plan.num_parts:,} partition{'s' * (plan.num_parts > 1)}",
         "relations, edges, layers that run them", boxes_width - 130),
    ):
        canvas.text(x, _MARGIN + 14, heading, 16, font_weight="bold")
        canvas.text(x + text_width(heading, 16) + 12, _MARGIN + 14, note, 12, GREY, space)
    canvas.text(
        _MARGIN, height - 16,
        f"Boundary nodes: {plan.boundary_nodes:,} · replication factor "
        f"{plan.replication_factor():.2f} · heaviest/lightest weight {balance(plan)}",
        12, GREY)
    for element in (background, canvas.root):
        element.set("width", f"{width:g}")
        element.set("height", f"{height:g}")
    canvas.root.set("viewBox", f"0 0 {width:g} {height:g}")
    ET.indent(canvas.root, " ")
    return ET.tostring(canvas.root, encoding="unicode") + "\n"


def save_svg(plan: Plan, costs: list[PartitionCost], path: str | Path) -> Path:
    """Write :func:`svg` to a file, whole or not at all."""
    return write_atomic(Path(path), svg(plan, costs))


@dataclass
class _Placed:
    """A vertex with its row; `vertex` is None for the line "… N more"."""

    vertex: Vertex | None
    y: float
    depth: int
    children: list[_Placed]
    hidden: int = 0


def _placed(vertex: Vertex, depth: int, y: float) -> tuple[_Placed, float]:
    """Lay a vertex out with what is below it, from `y` on; also the next free `y`."""
    children = []
    start = y
    for child in vertex.children:
        placed, y = _placed(child, depth + 1, y)
        children.append(placed)
    if vertex.hidden:
        children.append(_Placed(None, y + 12, depth + 1, [], vertex.hidden))
        y += 24
    y = max(y, start + _ROW)
    middle = (children[0].y + children[-1].y) / 2 if len(children) > 1 else (start + y) / 2
    if len(children) == 1:
        children[0].y = middle
    return _Placed(vertex, middle, depth, children), y


def _walk(placed: _Placed) -> Iterable[_Placed]:
    yield placed
    for child in placed.children:
        yield from _walk(child)


def _draw_trees(canvas: Canvas, plan: Plan) -> tuple[float, float]:
    holders = holders_of(plan)
    indices = heaviest(plan, _MAX_TREES)
    vertices = outline([plan.sub_metatrees[i] for i in indices], 16)
    # Rows first: they fix every y and tell which names each column holds.
    y = 0.0
    targets: list[tuple[str, list[tuple[int, float, float, _Placed]], float | None]] = []
    for target in plan.targets:
        bands = []
        for index, vertex in zip(indices, vertices):
            if vertex.relation.dst == target:
                placed, end = _placed(vertex, 1, y + _BAND_HEAD)
                bands.append((index, y, end + 4, placed))
                y = end + 4 + _GAP
        more = y + 12 if left_out(plan, indices, target) else None
        targets.append((target, bands, more))
        y += 24 + _GAP if more is not None else 0
    height = y - _GAP

    placed_all = [p for _, bands, _ in targets for *_, root in bands for p in _walk(root)]
    every = [p for p in placed_all if p.vertex]
    depths = max(p.depth for p in every)
    pills, links = [0.0] * (depths + 1), [0.0] * (depths + 1)
    pills[0] = max(_pill_width(plan, target) for target in plan.targets)
    for p in every:
        assert p.vertex is not None
        relation = p.vertex.relation
        pills[p.depth] = max(pills[p.depth], _pill_width(plan, relation.src))
        label = max(text_width(printable(relation.etype), 12),
                    text_width(f"{plan.schema.edge_counts[relation]:,}", 10.5))
        links[p.depth] = max(links[p.depth], min(label, 150.0))
    lefts = [0.0]
    for depth in range(1, depths + 1):
        lefts.append(lefts[-1] + pills[depth - 1] + 46 + max(links[depth], 40.0))
    band_left = pills[0] + 26
    ends = [lefts[p.depth - 1] + pills[p.depth - 1] + 100 for p in placed_all if p.hidden]
    width = max(lefts[-1] + pills[-1] + 12, band_left + 300, *ends)

    for target, bands, more in targets:
        rows = [root.y for *_, root in bands] + ([more] if more is not None else [])
        middle = (rows[0] + rows[-1]) / 2
        trunk = pills[0] + 14
        if more is not None:
            left = left_out(plan, indices, target)
            canvas.path(_elbow(trunk, middle, more, trunk + 16), "#9aa5b1", stroke_width=1.5)
            canvas.text(trunk + 22, more + 4, f"… {left:,} more sub-metatrees", 12, GREY)
        for index, start, end, root in bands:
            first = holders[index][0][0]
            colour = _colour(first)
            canvas.rect(band_left, start, width - band_left, end - start, _tint(colour, 0.09))
            canvas.text(band_left + 10, start + 17,
                        f"weight {plan.sub_metatrees[index].weight:,}", 11.5, INK)
            _draw_holders(canvas, holders[index], width - 10, start + 17)
            _draw_links(canvas, plan, root, colour, lefts, pills, (trunk, middle))
        _draw_arrow(canvas, pills[0], middle, trunk, "#52606d")
        _draw_pill(canvas, plan, target, 0, middle, pills[0], "#323f4b", root=True)
    return width, height


def _draw_holders(canvas: Canvas, holders: Sequence[tuple[int, Share]], right: float,
                  y: float) -> None:
    """`→ partition 0` at the right end of a band, a chip per partition."""
    x = right
    rest = len(holders) - 5
    if rest > 0:
        canvas.text(x, y, f"+{rest}", 11, GREY, text_anchor="end")
        x -= text_width(f"+{rest}", 11) + 6
    for part, _ in reversed(holders[:5]):
        wide = text_width(str(part), 11) + 10
        canvas.rect(x - wide, y - 12, wide, 16, _colour(part), rx=4)
        canvas.text(x - wide / 2, y, str(part), 11, "#ffffff", text_anchor="middle",
                    font_weight="bold")
        x -= wide + 4
    canvas.text(x - 2, y, "→ partition" + "s" * (len(holders) > 1), 11.5, INK,
                text_anchor="end")


def _elbow(x: float, y: float, to_y: float, to_x: float) -> str:
    """A path down or up the trunk at `x`, then right, with a rounded corner."""
    bend = min(7.0, abs(to_y - y))
    sign = 1 if to_y > y else -1
    return (f"M{x:g} {y:g}V{to_y - sign * bend:g}Q{x:g} {to_y:g} {x + bend:g} {to_y:g}"
            f"H{to_x:g}")


def _draw_links(canvas: Canvas, plan: Plan, placed: _Placed, colour: str,
                lefts: Sequence[float], pills: Sequence[float],
                parent: tuple[float, float]) -> None:
    """The link from the parent's trunk `(x, y)` to a vertex, the vertex, what is below."""
    trunk, parent_y = parent
    if placed.vertex is None:
        canvas.path(_elbow(trunk, parent_y, placed.y, trunk + 14), colour, stroke_width=1.2)
        canvas.text(trunk + 20, placed.y + 4, f"… {placed.hidden:,} more", 11, GREY)
        return
    relation = placed.vertex.relation
    x, wide = lefts[placed.depth], pills[placed.depth]
    edges = plan.schema.edge_counts[relation]
    canvas.path(_elbow(trunk, parent_y, placed.y, x), colour, stroke_width=1.8)
    # The labels sit on the straight part, right of any trunk (the root's runs outside the band).
    centre = ((trunk + 14 if placed.depth > 1 else trunk + 22) + x) / 2
    space = 150.0
    canvas.text(centre, placed.y - 5, relation.etype, 12, INK, space, text_anchor="middle")
    canvas.text(centre, placed.y + 14, f"{edges:,}", 10.5, GREY, space, text_anchor="middle")
    if placed.children:
        below = x + wide + 14
        for child in placed.children:
            _draw_links(canvas, plan, child, colour, lefts, pills, (below, placed.y))
        _draw_arrow(canvas, x + wide, placed.y, below, colour)
    _draw_pill(canvas, plan, relation.src, x, placed.y, wide, colour)


def _draw_arrow(canvas: Canvas, x: float, y: float, trunk: float, colour: str) -> None:
    """Edges point to the parent: the stub from the trunk with its arrow head."""
    canvas.path(f"M{trunk:g} {y:g}H{x + 6:g}", colour, stroke_width=1.8)
    canvas.path(f"M{x + 1:g} {y:g}l8 -4.5v9z", fill=colour)


def _pill_width(plan: Plan, ntype: str) -> float:
    return max(text_width(fit(printable(ntype), 12.5, 130), 12.5) * 1.06,
               text_width(f"{plan.schema.node_counts[ntype]:,}", 10)) + 18


def _draw_pill(canvas: Canvas, plan: Plan, ntype: str, x: float, y: float, wide: float,
               colour: str, root: bool = False) -> None:
    canvas.rect(x, y - _PILL / 2, wide, _PILL, colour if root else "#ffffff", colour,
                rx=_PILL / 2 - 5, stroke_width=1.5)
    canvas.text(x + wide / 2, y - 2, ntype, 12.5, "#ffffff" if root else INK, 130,
                text_anchor="middle", font_weight="bold")
    canvas.text(x + wide / 2, y + 11, f"{plan.schema.node_counts[ntype]:,}", 10,
                "#ffffff" if root else GREY, text_anchor="middle")


def _draw_boxes(canvas: Canvas, plan: Plan,
                costs: Sequence[PartitionCost]) -> tuple[float, float]:
    shown = list(zip(plan.partitions, costs))[:_MAX_BOXES]
    columns = 1 if len(shown) <= 3 else 2
    limit = 12 if len(shown) <= 2 else 8
    bottoms = [0.0] * columns
    for partition, cost in shown:
        column = bottoms.index(min(bottoms))
        bottoms[column] = _GAP + _draw_box(canvas, plan, partition, cost, limit,
                                           column * (_BOX_WIDTH + 14), bottoms[column])
    height = max(bottoms) - _GAP
    left = plan.num_parts - len(shown)
    if left:
        canvas.text(0, height + 22, f"… {left:,} more partitions", 12, GREY)
        height += 30
    return columns * (_BOX_WIDTH + 14) - 14, height


def _draw_box(canvas: Canvas, plan: Plan, partition: Partition, cost: PartitionCost,
              limit: int, x: float, y: float) -> float:
    """A partition's box; returns its lower edge."""
    colour = _colour(partition.index)
    relations = partition.relations
    cut = len(relations) > limit
    if cut:
        # The root relations first: they are what makes the partition this one.
        roots = plan.roots(partition.index)
        relations = tuple(sorted(relations, key=lambda r: r not in roots))[:limit - 1]
    heading = f"Partition {partition.index}"
    if len(plan.groups) > 1:
        heading += f" · group {partition.group}"
    shares = sorted({(s.index, str(s)) for s in partition.sub_metatrees.values() if s.count > 1})
    if shares:
        heading += " · share " + ", ".join(text for _, text in shares)
    head, line = 28, 18
    layers = plan.hops if plan.hops <= 6 else 0
    height = head + 20 + line * (len(relations) + cut) + 64
    canvas.rect(x, y, _BOX_WIDTH, height, "#ffffff", _tint(colour, 0.55), stroke_width=1.2)
    canvas.path(f"M{x:g} {y + head:g}v-{head - 6}q0 -6 6 -6h{_BOX_WIDTH - 12}q6 0 6 6"
                f"v{head - 6}z", fill=colour)
    canvas.text(x + 12, y + 19, heading, 13, "#ffffff", _BOX_WIDTH - 150, font_weight="bold")
    canvas.text(x + _BOX_WIDTH - 12, y + 19, f"weight {partition.weight:,}", 11.5, "#ffffff",
                text_anchor="end")

    row = y + head + 16
    dots = [x + _BOX_WIDTH - 20 - 20 * (layers - 1 - k) for k in range(layers)]
    number_right = (dots[0] - 26) if dots else x + _BOX_WIDTH - 12
    canvas.text(number_right, row, "edges", 10, GREY, text_anchor="end")
    for k, dot in enumerate(dots):
        canvas.text(dot, row, f"L{k + 1}", 10, GREY, text_anchor="middle")
    for relation in relations:
        row += line
        edges = f"{plan.schema.edge_counts[relation]:,}"
        canvas.text(x + 12, row, str(relation), 12, INK,
                    number_right - text_width(edges, 11.5) - x - 22)
        canvas.text(number_right, row, edges, 11.5, INK, text_anchor="end")
        for k, dot in enumerate(dots):
            runs = relation in partition.layers[k + 1]
            canvas.add("circle", cx=float(dot), cy=float(row - 4), r=4.5 if runs else 2,
                       fill=colour if runs else _RULE)
    if cut:
        row += line
        canvas.text(x + 12, row, f"… {len(partition.relations) - len(relations):,} more", 12,
                    GREY)
    row += 11
    canvas.path(f"M{x + 12:g} {row:g}h{_BOX_WIDTH - 24}", _RULE)
    counts = (f"{cost.relations:,} relation{'s' * (cost.relations != 1)} · "
              f"{cost.nodes:,} nodes · {cost.edges:,} edges")
    canvas.text(x + 12, row + 16, counts, 11.5, INK, _BOX_WIDTH - 24)
    sizes = [f"{name} {human_bytes(size)}" for name, size in (
        ("topology", cost.topology_bytes), ("features", cost.feature_bytes),
        ("learnable", cost.learnable_bytes)) if size]
    canvas.text(x + 12, row + 32, " · ".join(sizes), 11.5, GREY, _BOX_WIDTH - 24)
    sent = (f"sends {human_bytes(cost.partial_bytes)} of partials per step" if cost.partials_known
            else "partials per step not known")
    canvas.text(x + 12, row + 48, f"{cost.boundary_nodes:,} boundary nodes · {sent}", 11.5, GREY,
                _BOX_WIDTH - 24)
    return y + height


def _tint(colour: str, strength: float) -> str:
    """The colour mixed with white."""
    parts = (int(colour[i:i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * strength):02x}" for part in parts)


def _colour(part: int) -> str:
    return PALETTE[part % len(PALETTE)]
