"""Draw which package of dgl_heta imports which: docs/architecture.svg, from the syntax trees.

    python scripts/draw_architecture.py            # draw it again
    python scripts/draw_architecture.py --check    # does the file show the imports of today?

An arrow goes from a package down to one that it imports. What follows from other arrows is left
out (the transitive reduction), and so are imports for type checkers. A package stands as low as
its imports allow.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import networkx as nx

from dgl_heta.report.canvas import GREY, Canvas

ROOT = Path(__file__).resolve().parents[1]
DRAWING = ROOT / "docs/architecture.svg"
LEFT_OUT = {"__init__", "__main__", "_version", "tools"}  # they say nothing about the order
WIDTH, HEIGHT, STEP_X, STEP_Y, MARGIN = 104, 28, 124, 60, 20
PASSING_X = 30  # for an arrow that passes a level
ARROW = "#9aa5b1"
SWEEPS = 24


def imported(node: ast.AST) -> Iterator[str]:
    """Full names of the modules and names that are imported below a node, type checkers aside."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.ImportFrom):
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        yield from imported(child)


def packages() -> nx.DiGraph:
    """Packages and modules directly in dgl_heta/, an arrow for an import that is not implied."""
    graph = nx.DiGraph()
    source = ROOT / "dgl_heta"
    for file in sorted(source.rglob("*.py")):
        importer = file.relative_to(source).with_suffix("").parts[0]
        graph.add_node(importer)
        for name in imported(ast.parse(file.read_text(encoding="utf-8"))):
            parts = name.split(".")
            if parts[0] == "dgl_heta" and len(parts) > 1 and parts[1] != importer:
                graph.add_edge(importer, parts[1])
    here = {path.stem for path in source.iterdir()} - LEFT_OUT
    return nx.transitive_reduction(graph.subgraph(here))


def layers(graph: nx.DiGraph) -> tuple[list[list[Any]], list[list[Any]]]:
    """Levels of nodes, lowest first, each in an order with few crossings, and the arrows' ways.

    A way is a list of nodes from an arrow's start to its end. Where it passes other levels, a place
    of its own stands in them, `(start, end, level)`.
    """
    levels: list[list[Any]] = [sorted(level)
                               for level in nx.topological_generations(graph.reverse())]
    level_of = {name: number for number, level in enumerate(levels) for name in level}
    ways: list[list[Any]] = []
    for start, end in sorted(graph.edges):
        passed = [(start, end, n) for n in range(level_of[start] - 1, level_of[end], -1)]
        ways.append([start, *passed, end])
        for place in passed:
            levels[place[2]].append(place)
    beside: dict[Any, list[Any]] = {node: [] for level in levels for node in level}
    for upper, lower in (step for way in ways for step in pairwise(way)):
        beside[upper].append(lower)
        beside[lower].append(upper)
    for sweep in range(SWEEPS):  # nodes go to the mean place of their neighbours, down and up
        for level in levels if sweep % 2 else levels[::-1]:
            x = {node: middle for other in levels for node, middle in zip(other, middles(other))}
            level.sort(key=lambda node: sum(x[other] for other in beside[node])
                       / max(len(beside[node]), 1))
    return levels, ways


def middles(level: list[Any]) -> list[float]:
    """Where the nodes of a level stand, left to right around 0."""
    steps = [STEP_X if isinstance(node, str) else PASSING_X for node in level]
    ends = list(accumulate(steps))
    return [end - step / 2 - ends[-1] / 2 for end, step in zip(ends, steps)]


def draw(graph: nx.DiGraph) -> str:
    levels, ways = layers(graph)
    half = max(abs(x) for level in levels for x in middles(level)) + STEP_X / 2
    width, height = 2 * half + 2 * MARGIN, len(levels) * STEP_Y + MARGIN
    at = {node: (x + width / 2, height - MARGIN - number * STEP_Y - HEIGHT / 2)
          for number, level in enumerate(levels) for node, x in zip(level, middles(level))}
    canvas = Canvas()
    canvas.root.set("viewBox", f"0 0 {width:g} {height:g}")
    canvas.root.set("width", f"{width:g}")
    canvas.rect(0, 0, width, height, "#ffffff", rx=0)
    for way in ways:
        points = [at[node] for node in way]
        points[0] = (points[0][0], points[0][1] + HEIGHT / 2)
        x, y = points[-1] = (points[-1][0], points[-1][1] - HEIGHT / 2)
        bends = [f"C{x0:g} {(y0 + y1) / 2:g} {x1:g} {(y0 + y1) / 2:g} {x1:g} {y1:g}"
                 for (x0, y0), (x1, y1) in pairwise(points)]
        canvas.path(f"M{points[0][0]:g} {points[0][1]:g}" + "".join(bends), stroke=ARROW,
                    id=f"{way[0]}-{way[-1]}", stroke_width=1.2)
        canvas.path(f"M{x - 3.5:g} {y - 6:g}L{x + 3.5:g} {y - 6:g}L{x:g} {y:g}Z", fill=ARROW)
    for name in sorted(graph):
        x, y = at[name]
        canvas.rect(x - WIDTH / 2, y - HEIGHT / 2, WIDTH, HEIGHT, "#f0f4f8", stroke=GREY)
        canvas.text(x, y + 4.5, name, size=13, text_anchor="middle")
    ElementTree.indent(canvas.root)
    return ElementTree.tostring(canvas.root, encoding="unicode") + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if it is old")
    check = parser.parse_args().check
    drawing = draw(packages())
    if not check:
        DRAWING.write_text(drawing, encoding="utf-8")
    elif not DRAWING.exists() or DRAWING.read_text(encoding="utf-8") != drawing:
        sys.exit("error: docs/architecture.svg shows other imports than those of dgl_heta/; draw "
                 "it again: python scripts/draw_architecture.py")


if __name__ == "__main__":
    main()
