"""Pictures of a plan: for the terminal and as an SVG (in the manner of Heta, Fig. 6).

Both show the metatree on top of (or left of) the partitions, one colour per partition. A
metatree grows exponentially with its depth, so :func:`outline` decides what is drawn before
anything is; what is left out is counted ("… 12 more").
"""

from __future__ import annotations

import math
import os
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from dgl_heta.cost import PartitionCost
from dgl_heta.errors import HetaError
from dgl_heta.metatree import SubMetatree
from dgl_heta.plan import Partition, Plan, Share
from dgl_heta.schema import Relation

PALETTE = ("#2f6db5", "#d2691e", "#2b8a5b", "#8b56b5", "#c23b4b", "#16869a", "#857d12", "#c4538f")
"""One colour per partition, used round and round."""

_STYLES = ("cyan", "yellow", "green", "magenta", "red", "bright_blue", "bright_green",
           "bright_magenta")


# --- shared helpers -----------------------------------------------------------------------


def printable(name: object) -> str:
    """The name with control characters and others that no output can show replaced."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(name))


def human_bytes(count: float) -> str:
    """`119.6 MB`: decimal units, four digits at most."""
    if count < 1000:
        return f"{count:.0f} B"
    units = ("kB", "MB", "GB", "TB", "PB")
    step = 0
    while (count := count / 1000) >= 999.95 and step < len(units) - 1:
        step += 1
    return f"{count:,.{2 if count < 9.995 else 1}f} {units[step]}"


def write_atomic(path: Path, text: str) -> Path:
    """Write a text file so that a reader sees the old or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise HetaError(f"cannot write {path}: {error.strerror or error}") from None
    return path


def _ranges(numbers: Iterable[int]) -> str:
    """`0-3, 5` for 0 1 2 3 5 (ascending)."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}"
                     for a, b in runs)


def _holders(plan: Plan) -> list[list[tuple[int, Share]]]:
    """For each sub-metatree the partitions that run it, with their shares."""
    holders: list[list[tuple[int, Share]]] = [[] for _ in plan.sub_metatrees]
    for partition in plan.partitions:
        for index, share in partition.sub_metatrees.items():
            holders[index].append((partition.index, share))
    return holders


def _balance(plan: Plan) -> str:
    weights = [partition.weight for partition in plan.partitions]
    return f"{max(weights) / min(weights):.2f}" if min(weights) else "∞ (an empty partition)"


def _heaviest(plan: Plan, count: int) -> list[int]:
    """Indices of `count` sub-metatrees: the heaviest of every target in turn."""
    rank: dict[str, int] = {}
    keys = []
    for index, tree in enumerate(plan.sub_metatrees):
        rank[tree.target] = rank.get(tree.target, 0) + 1
        keys.append((rank[tree.target], index))
    return sorted(index for _, index in sorted(keys)[:max(count, len(plan.targets))])


def _left_out(plan: Plan, shown: Sequence[int], target: str) -> int:
    """Number of the target's sub-metatrees that are not drawn."""
    drawn = sum(plan.sub_metatrees[i].target == target for i in shown)
    return sum(tree.target == target for tree in plan.sub_metatrees) - drawn


@dataclass
class Vertex:
    """A drawn vertex of the metatree: the relation that leads to it and what is below.

    `hidden` counts the children that are left out.
    """

    relation: Relation
    children: list[Vertex] = field(default_factory=list)
    hidden: int = 0


def outline(trees: Sequence[SubMetatree], room: int) -> list[Vertex]:
    """The sub-metatrees as nested vertices, cut to at most `room` lines below the roots.

    Level by level, and in a level the heaviest sub-metatree first. A vertex that has children
    reserves one line, for "… (N more)" or for the first of them.
    """
    below = []
    for tree in trees:
        by_level: list[dict[str, list[Relation]]] = [{} for _ in tree.levels]
        for by_type, level in zip(by_level, tree.levels):
            for relation in level:
                by_type.setdefault(relation.dst, []).append(relation)
        below.append(by_level)

    def under(tree: int, depth: int, relation: Relation) -> list[Relation]:
        levels = below[tree]
        return levels[depth].get(relation.src, []) if depth < len(levels) else []

    def lines(tree: int, depth: int, relation: Relation) -> int:
        return 1 + bool(under(tree, depth + 1, relation))

    roots = [Vertex(tree.root) for tree in trees]
    frontier = list(enumerate(roots))
    room -= sum(lines(i, 0, tree.root) - 1 for i, tree in enumerate(trees))
    depth = 1
    while frontier:
        needed = sum(sum(lines(i, depth, r) for r in below_it) - 1
                     for i, v in frontier if (below_it := under(i, depth, v.relation)))
        fits = needed <= room
        reached = []
        for done, (i, vertex) in enumerate(frontier):
            children = under(i, depth, vertex.relation)
            if not children:
                continue
            left = room if fits else min(room, max(8, room // (len(frontier) - done)))
            costs = [lines(i, depth, r) for r in children]
            shown, used = len(children), sum(costs) - 1
            if used > left:
                shown = used = 0
                while used + costs[shown] <= left:
                    used += costs[shown]
                    shown += 1
            room -= used
            vertex.children = [Vertex(r) for r in children[:shown]]
            vertex.hidden = len(children) - shown
            reached += [(i, child) for child in vertex.children]
        frontier = reached
        depth += 1
    return roots


# --- terminal -----------------------------------------------------------------------------


def _style(part: int) -> str:
    return _STYLES[part % len(_STYLES)]


def terminal(plan: Plan, costs: list[PartitionCost], console: Console, max_lines: int = 48,
             max_rows: int = 32, max_relations: int = 24) -> None:
    """Draw the metatree, the partitions with their predicted costs and the layers.

    Parameters
    ----------
    costs : one per partition, from :func:`dgl_heta.cost.predict`.
    max_lines : lines of the metatree; `max_rows` partitions are listed, and the table of
        layers is left out for more than `max_relations` relations.
    """
    for tree in _metatrees(plan, max_lines):
        console.print(tree)
        console.print()
    console.print(_partition_table(plan, max_rows))
    if len(plan.groups) > 1 or any(len(h) > 1 for h in _holders(plan)):
        console.print(Text(
            f"{len(plan.groups)} group{'s' * (len(plan.groups) > 1)} of partitions, each with "
            "seeds of its own; share k/n of a sub-metatree is part k of n of the group's seeds.",
            style="dim"))
    console.print()
    console.print(_cost_table(plan, costs, max_rows))
    console.print()
    console.print(_totals(plan))
    used = {r for partition in plan.partitions for r in partition.relations}
    console.print()
    if len(used) > max_relations:
        console.print(Text(
            f"Layers: {len(used)} relations in {plan.hops} layers are too many to list here; "
            "the saved plan has them per partition and layer.", style="dim"))
    else:
        console.print(_layer_table(plan, [r for r in plan.schema.relations if r in used]))


def _metatrees(plan: Plan, max_lines: int) -> list[Tree]:
    """One rich tree per target; all of them share `max_lines`."""
    holders = _holders(plan)
    room = max_lines - 2 * len(plan.targets)
    total = len(plan.sub_metatrees)
    all_fit = total <= (room if plan.hops == 1 else room // 2)
    shown = _heaviest(plan, total if all_fit else room // 4)
    vertices = outline([plan.sub_metatrees[i] for i in shown], max(0, room - len(shown)))
    trees = []
    for target in plan.targets:
        label = Text(printable(target), style="bold")
        label.append(f"  target, {plan.schema.node_counts[target]:,} nodes", style="dim")
        tree = Tree(label, guide_style="dim")
        for index, vertex in zip(shown, vertices):
            if vertex.relation.dst == target:
                weight = plan.sub_metatrees[index].weight
                style = _style(holders[index][0][0])
                branch = tree.add(_link(plan, vertex, style, weight, holders[index]))
                _grow(plan, branch, vertex)
        if left := _left_out(plan, shown, target):
            tree.add(Text(f"… ({left:,} more)", style="dim"))
        trees.append(tree)
    return trees


def _grow(plan: Plan, branch: Tree, vertex: Vertex) -> None:
    for child in vertex.children:
        _grow(plan, branch.add(_link(plan, child)), child)
    if vertex.hidden:
        branch.add(Text(f"… ({vertex.hidden:,} more)", style="dim"))


def _link(plan: Plan, vertex: Vertex, style: str = "", weight: int | None = None,
          holders: Sequence[tuple[int, Share]] = ()) -> Text:
    """`paper cites paper  10,832,542 edges  weight 27,414,283 → partition 0`."""
    text = Text(printable(vertex.relation), style=f"bold {style}".strip() if weight else "")
    text.append(f"  {plan.schema.edge_counts[vertex.relation]:,} edges", style="not bold dim")
    if weight is not None:
        text.append(f"  weight {weight:,}", style="not bold")
        text.append(" → ", style="not bold")
        text.append("partitions " if len(holders) > 1 else "partition ", style="not bold")
        for position, (part, share) in enumerate(holders[:6]):
            text.append(", " if position else "", style="not bold")
            text.append(str(part), style=f"bold {_style(part)}")
            if share.count > 1:
                text.append(f" (share {share.index + 1}/{share.count})", style="not bold")
        if len(holders) > 6:
            text.append(f", … ({len(holders) - 6} more)", style="not bold")
    return text


def _roots(plan: Plan, partition: Partition, limit: int) -> list[str]:
    """Root relations of a partition with their shares, at most `limit` lines."""
    names = [
        printable(plan.sub_metatrees[i].root)
        + (f" (share {share.index + 1}/{share.count} of the seeds)" if share.count > 1 else "")
        for i, share in partition.sub_metatrees.items()
    ]
    if len(names) > limit:
        names = [*names[:limit - 1], f"… ({len(names) - limit + 1:,} more)"]
    return names or ["(none)"]


def _table(title: str, columns: Sequence[str], grows: int | None = None) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", header_style="dim",
                  box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for number, column in enumerate(columns):
        if number == grows:
            table.add_column(column, overflow="fold", min_width=12)
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table


def _partition_table(plan: Plan, max_rows: int) -> Table:
    grouped = len(plan.groups) > 1
    columns = ["part", *(["group"] if grouped else []), "root relations",
               "relations", "nodes", "edges", "weight"]
    table = _table("Partitions", columns, grows=1 + grouped)
    for partition in plan.partitions[:max_rows]:
        style = _style(partition.index)
        limit = 8 if plan.num_parts <= 8 else 3
        table.add_row(
            Text(str(partition.index), style=f"bold {style}"),
            *([str(partition.group)] if grouped else []),
            Text("\n".join(_roots(plan, partition, limit)), style=style),
            f"{len(partition.relations):,}", f"{partition.num_nodes:,}",
            f"{partition.num_edges:,}", f"{partition.weight:,}",
        )
    _more_rows(table, plan, max_rows, 1 + grouped)
    return table


def _cost_table(plan: Plan, costs: Sequence[PartitionCost], max_rows: int) -> Table:
    table = _table("Predicted per partition", [
        "part", "topology", "features", "learnable", "memory", "boundary nodes", "sent per step"])
    for partition, cost in list(zip(plan.partitions, costs))[:max_rows]:
        memory = cost.topology_bytes + cost.feature_bytes + cost.learnable_bytes
        table.add_row(
            Text(str(partition.index), style=f"bold {_style(partition.index)}"),
            human_bytes(cost.topology_bytes), human_bytes(cost.feature_bytes),
            human_bytes(cost.learnable_bytes), human_bytes(memory),
            f"{cost.boundary_nodes:,}", human_bytes(cost.partial_bytes + cost.gradient_bytes),
        )
    _more_rows(table, plan, max_rows, 1)
    return table


def _more_rows(table: Table, plan: Plan, max_rows: int, column: int) -> None:
    left = plan.num_parts - max_rows
    if left > 0:
        table.add_row("…", *[""] * (column - 1), f"({left:,} more)")


def _totals(plan: Plan) -> Text:
    return Text(f"weight max/min {_balance(plan)} · replication factor "
                f"{plan.replication_factor():.2f} · {plan.boundary_nodes:,} boundary nodes",
                style="bold")


def _layer_table(plan: Plan, relations: Sequence[Relation]) -> Table:
    layers = range(1, plan.hops + 1)
    table = _table("Which partition runs what at which layer",
                   ["relation", *(f"layer {layer}" for layer in layers)], grows=0)
    for relation in relations:
        cells = []
        for layer in layers:
            owners = plan.owners(layer, relation)
            text = Text("–" if not owners else "", style="dim" if not owners else "")
            if len(owners) > 4:
                text.append(_ranges(owners))
            else:
                for number, part in enumerate(owners):
                    text.append(", " if number else "")
                    text.append(str(part), style=_style(part))
            cells.append(text)
        table.add_row(Text(printable(relation)), *cells)
    return table


# --- SVG ----------------------------------------------------------------------------------

_INK, _GREY, _RULE = "#1f2933", "#5f6c7b", "#d5dbe1"
_ROW, _PILL, _BAND_HEAD, _GAP = 46, 34, 26, 10
_BOX_WIDTH, _MARGIN = 404, 24
_MAX_TREES, _MAX_BOXES = 8, 8


def _text_width(text: str, size: float) -> float:
    """An upper estimate that holds for the usual sans-serif fonts."""
    width = 0.0
    for char in text:
        if unicodedata.east_asian_width(char) in "WF":
            width += 1.05
        elif char in "ijl.,:;|!'()[] -…·":
            width += 0.36
        elif char in "mwMW@%&":
            width += 1.0
        else:
            width += 0.72 if char.isupper() else 0.60
    return width * size


def _fit(text: str, size: float, width: float) -> str:
    """The text, cut with an ellipsis where it is wider than `width`."""
    if _text_width(text, size) <= width:
        return text
    while text and _text_width(text + "…", size) > width:
        text = text[:-1]
    return text + "…"


def _tint(colour: str, strength: float) -> str:
    """The colour mixed with white."""
    parts = (int(colour[i:i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - (255 - part) * strength):02x}" for part in parts)


def _colour(part: int) -> str:
    return PALETTE[part % len(PALETTE)]


class _Canvas:
    """An SVG under construction; ElementTree does all the escaping."""

    def __init__(self) -> None:
        self.root = ET.Element("svg", {
            "xmlns": "http://www.w3.org/2000/svg",
            "role": "img",
            "font-family": "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, "
                           "Arial, sans-serif",
        })
        self.into = self.root

    def add(self, tag: str, **attributes: object) -> ET.Element:
        values = {key.replace("_", "-"): f"{value:g}" if isinstance(value, float) else str(value)
                  for key, value in attributes.items()}
        return ET.SubElement(self.into, tag, values)

    def text(self, x: float, y: float, text: str, size: float = 12, fill: str = _INK,
             width: float = math.inf, **attributes: object) -> None:
        """One line of text; where `width` cuts it, the whole is kept as a tooltip."""
        shown = _fit(printable(text), size, width)
        element = self.add("text", x=float(x), y=float(y), font_size=size, fill=fill,
                           **attributes)
        element.text = shown
        if shown != text:
            tooltip = ET.SubElement(element, "title")
            tooltip.text = printable(text)

    def rect(self, x: float, y: float, width: float, height: float, fill: str,
             stroke: str = "none", rx: float = 6, **attributes: object) -> None:
        self.add("rect", x=float(x), y=float(y), width=float(width), height=float(height),
                 rx=rx, fill=fill, stroke=stroke, **attributes)

    def path(self, d: str, stroke: str = "none", fill: str = "none",
             **attributes: object) -> None:
        self.add("path", d=d, stroke=stroke, fill=fill, **attributes)


def svg(plan: Plan, costs: list[PartitionCost]) -> str:
    """The metatree and the partitions as one self-contained SVG.

    Left the metatree, growing from the target to the right: a vertex is a node type, a link
    a relation. Right a box per partition with the relations it runs at each layer. Larger
    plans are condensed to the heaviest sub-metatrees and the first partitions.
    """
    canvas = _Canvas()
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
        canvas.text(x + _text_width(heading, 16) + 12, _MARGIN + 14, note, 12, _GREY, space)
    canvas.text(
        _MARGIN, height - 16,
        f"Boundary nodes: {plan.boundary_nodes:,} · replication factor "
        f"{plan.replication_factor():.2f} · heaviest/lightest weight {_balance(plan)}",
        12, _GREY)
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


def _place(vertex: Vertex, depth: int, y: float) -> tuple[_Placed, float]:
    """Lay a vertex out with what is below it, from `y` on; also the next free `y`."""
    children = []
    start = y
    for child in vertex.children:
        placed, y = _place(child, depth + 1, y)
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


def _draw_trees(canvas: _Canvas, plan: Plan) -> tuple[float, float]:
    holders = _holders(plan)
    indices = _heaviest(plan, _MAX_TREES)
    vertices = outline([plan.sub_metatrees[i] for i in indices], 16)
    # Rows first: they fix every y and tell which names each column holds.
    y = 0.0
    targets: list[tuple[str, list[tuple[int, float, float, _Placed]], float | None]] = []
    for target in plan.targets:
        bands = []
        for index, vertex in zip(indices, vertices):
            if vertex.relation.dst == target:
                placed, end = _place(vertex, 1, y + _BAND_HEAD)
                bands.append((index, y, end + 4, placed))
                y = end + 4 + _GAP
        more = y + 12 if _left_out(plan, indices, target) else None
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
        label = max(_text_width(printable(relation.etype), 12),
                    _text_width(f"{plan.schema.edge_counts[relation]:,}", 10.5))
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
            left = _left_out(plan, indices, target)
            canvas.path(_elbow(trunk, middle, more, trunk + 16), "#9aa5b1", stroke_width=1.5)
            canvas.text(trunk + 22, more + 4, f"… {left:,} more sub-metatrees", 12, _GREY)
        for index, start, end, root in bands:
            first = holders[index][0][0]
            colour = _colour(first)
            canvas.rect(band_left, start, width - band_left, end - start, _tint(colour, 0.09))
            canvas.text(band_left + 10, start + 17,
                        f"weight {plan.sub_metatrees[index].weight:,}", 11.5, _INK)
            _draw_holders(canvas, holders[index], width - 10, start + 17)
            _draw_links(canvas, plan, root, colour, lefts, pills, (trunk, middle))
        _draw_arrow(canvas, pills[0], middle, trunk, "#52606d")
        _draw_pill(canvas, plan, target, 0, middle, pills[0], "#323f4b", root=True)
    return width, height


def _draw_holders(canvas: _Canvas, holders: Sequence[tuple[int, Share]], right: float,
                  y: float) -> None:
    """`→ partition 0` at the right end of a band, a chip per partition."""
    x = right
    rest = len(holders) - 5
    if rest > 0:
        canvas.text(x, y, f"+{rest}", 11, _GREY, text_anchor="end")
        x -= _text_width(f"+{rest}", 11) + 6
    for part, _ in reversed(holders[:5]):
        wide = _text_width(str(part), 11) + 10
        canvas.rect(x - wide, y - 12, wide, 16, _colour(part), rx=4)
        canvas.text(x - wide / 2, y, str(part), 11, "#ffffff", text_anchor="middle",
                    font_weight="bold")
        x -= wide + 4
    canvas.text(x - 2, y, "→ partition" + "s" * (len(holders) > 1), 11.5, _INK,
                text_anchor="end")


def _elbow(x: float, y: float, to_y: float, to_x: float) -> str:
    """A path down or up the trunk at `x`, then right, with a rounded corner."""
    bend = min(7.0, abs(to_y - y))
    sign = 1 if to_y > y else -1
    return (f"M{x:g} {y:g}V{to_y - sign * bend:g}Q{x:g} {to_y:g} {x + bend:g} {to_y:g}"
            f"H{to_x:g}")


def _draw_links(canvas: _Canvas, plan: Plan, placed: _Placed, colour: str,
                lefts: Sequence[float], pills: Sequence[float],
                parent: tuple[float, float]) -> None:
    """The link from the parent's trunk `(x, y)` to a vertex, the vertex, what is below."""
    trunk, parent_y = parent
    if placed.vertex is None:
        canvas.path(_elbow(trunk, parent_y, placed.y, trunk + 14), colour, stroke_width=1.2)
        canvas.text(trunk + 20, placed.y + 4, f"… {placed.hidden:,} more", 11, _GREY)
        return
    relation = placed.vertex.relation
    x, wide = lefts[placed.depth], pills[placed.depth]
    edges = plan.schema.edge_counts[relation]
    canvas.path(_elbow(trunk, parent_y, placed.y, x), colour, stroke_width=1.8)
    # The labels sit on the straight part, right of any trunk (the root's runs outside the band).
    centre = ((trunk + 14 if placed.depth > 1 else trunk + 22) + x) / 2
    space = 150.0
    canvas.text(centre, placed.y - 5, relation.etype, 12, _INK, space, text_anchor="middle")
    canvas.text(centre, placed.y + 14, f"{edges:,}", 10.5, _GREY, space, text_anchor="middle")
    if placed.children:
        below = x + wide + 14
        for child in placed.children:
            _draw_links(canvas, plan, child, colour, lefts, pills, (below, placed.y))
        _draw_arrow(canvas, x + wide, placed.y, below, colour)
    _draw_pill(canvas, plan, relation.src, x, placed.y, wide, colour)


def _draw_arrow(canvas: _Canvas, x: float, y: float, trunk: float, colour: str) -> None:
    """Edges point to the parent: the stub from the trunk with its arrow head."""
    canvas.path(f"M{trunk:g} {y:g}H{x + 6:g}", colour, stroke_width=1.8)
    canvas.path(f"M{x + 1:g} {y:g}l8 -4.5v9z", fill=colour)


def _pill_width(plan: Plan, ntype: str) -> float:
    return max(_text_width(_fit(printable(ntype), 12.5, 130), 12.5) * 1.06,
               _text_width(f"{plan.schema.node_counts[ntype]:,}", 10)) + 18


def _draw_pill(canvas: _Canvas, plan: Plan, ntype: str, x: float, y: float, wide: float,
               colour: str, root: bool = False) -> None:
    canvas.rect(x, y - _PILL / 2, wide, _PILL, colour if root else "#ffffff", colour,
                rx=_PILL / 2 - 5, stroke_width=1.5)
    canvas.text(x + wide / 2, y - 2, ntype, 12.5, "#ffffff" if root else _INK, 130,
                text_anchor="middle", font_weight="bold")
    canvas.text(x + wide / 2, y + 11, f"{plan.schema.node_counts[ntype]:,}", 10,
                "#ffffff" if root else _GREY, text_anchor="middle")


def _draw_boxes(canvas: _Canvas, plan: Plan,
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
        canvas.text(0, height + 22, f"… {left:,} more partitions", 12, _GREY)
        height += 30
    return columns * (_BOX_WIDTH + 14) - 14, height


def _draw_box(canvas: _Canvas, plan: Plan, partition: Partition, cost: PartitionCost,
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
    shares = sorted({(s.index, s.count) for s in partition.sub_metatrees.values() if s.count > 1})
    if shares:
        heading += " · share " + ", ".join(f"{i + 1}/{n}" for i, n in shares)
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
    canvas.text(number_right, row, "edges", 10, _GREY, text_anchor="end")
    for k, dot in enumerate(dots):
        canvas.text(dot, row, f"L{k + 1}", 10, _GREY, text_anchor="middle")
    for relation in relations:
        row += line
        edges = f"{plan.schema.edge_counts[relation]:,}"
        canvas.text(x + 12, row, str(relation), 12, _INK,
                    number_right - _text_width(edges, 11.5) - x - 22)
        canvas.text(number_right, row, edges, 11.5, _INK, text_anchor="end")
        for k, dot in enumerate(dots):
            runs = relation in partition.layers[k + 1]
            canvas.add("circle", cx=float(dot), cy=float(row - 4), r=4.5 if runs else 2,
                       fill=colour if runs else _RULE)
    if cut:
        row += line
        canvas.text(x + 12, row, f"… {len(partition.relations) - len(relations):,} more", 12,
                    _GREY)
    row += 11
    canvas.path(f"M{x + 12:g} {row:g}h{_BOX_WIDTH - 24}", _RULE)
    counts = (f"{cost.relations:,} relation{'s' * (cost.relations != 1)} · "
              f"{cost.nodes:,} nodes · {cost.edges:,} edges")
    canvas.text(x + 12, row + 16, counts, 11.5, _INK, _BOX_WIDTH - 24)
    sizes = [f"{name} {human_bytes(size)}" for name, size in (
        ("topology", cost.topology_bytes), ("features", cost.feature_bytes),
        ("learnable", cost.learnable_bytes)) if size]
    canvas.text(x + 12, row + 32, " · ".join(sizes), 11.5, _GREY, _BOX_WIDTH - 24)
    canvas.text(x + 12, row + 48, f"{cost.boundary_nodes:,} boundary nodes · sends "
                f"{human_bytes(cost.partial_bytes + cost.gradient_bytes)} per step", 11.5, _GREY,
                _BOX_WIDTH - 24)
    return y + height
