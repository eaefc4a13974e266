"""A plan in the terminal: the metatree, tables of partitions, costs and layers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from dgl_heta.graph.schema import Relation
from dgl_heta.planning.cost import PartitionCost
from dgl_heta.planning.partition_shares import Partition, Share
from dgl_heta.planning.plan import Plan
from dgl_heta.report.console import table
from dgl_heta.report.excerpt import Vertex, balance, heaviest, holders_of, left_out, outline
from dgl_heta.report.text import human_bytes, printable

_STYLES = ("cyan", "yellow", "green", "magenta", "red", "bright_blue", "bright_green",
           "bright_magenta")


def terminal(plan: Plan, costs: list[PartitionCost], console: Console, max_lines: int = 48,
             max_rows: int = 32, max_relations: int = 24) -> None:
    """Draw the metatree, the partitions with their predicted costs and the layers.

    Parameters
    ----------
    costs : one per partition, from :func:`dgl_heta.planning.cost.predict`.
    max_lines : lines of the metatree; `max_rows` partitions are listed, and the table of
        layers is left out for more than `max_relations` relations.
    """
    for tree in _metatrees(plan, max_lines):
        console.print(tree)
        console.print()
    _print_table(console, _partition_table(plan, max_rows))
    if plan.replication == "none":
        console.print(Text("Nothing is replicated: partial aggregations of rows of any type that "
                           "several partitions have are exchanged at every layer.", style="dim"))
    elif len(plan.groups) > 1 or any(len(h) > 1 for h in holders_of(plan)):
        console.print(Text(
            f"{len(plan.groups)} group{'s' * (len(plan.groups) > 1)} of partitions, each with "
            "seeds of its own; share k/n of a sub-metatree is part k of n of the group's seeds.",
            style="dim"))
    for part, types in offloaded_to(plan).items():
        console.print(Text(f"At layer 1 partition {part} aggregates {', '.join(types)} for the "
                           "others, too.", style="dim"))
    console.print()
    _print_table(console, _cost_table(plan, costs, max_rows))
    console.print()
    console.print(_totals(plan, costs))
    used = {r for partition in plan.partitions for r in partition.relations}
    console.print()
    if len(used) > max_relations:
        console.print(Text(
            f"Layers: {len(used)} relations in {plan.hops} layers are too many to list here; "
            "the saved plan has them per partition and layer.", style="dim"))
    else:
        _print_table(console, _layer_table(plan, [r for r in plan.schema.relations if r in used]))


def offloaded_to(plan: Plan) -> dict[int, list[str]]:
    """Partition → node types whose relations it runs at layer 1 for the others of its group."""
    types_of: dict[int, list[str]] = {}
    for partition in plan.partitions:
        if partition.served:
            types_of[partition.index] = list(dict.fromkeys(r.src for r in partition.served))
    return types_of


def _print_table(console: Console, table: Table) -> None:
    """Print at 80 columns at least: a long line that wraps keeps its digits, a cut one does not."""
    console.print(table, width=max(console.width, 80), crop=False, soft_wrap=False)


def _metatrees(plan: Plan, max_lines: int) -> list[Tree]:
    """One rich tree per target; all of them share `max_lines`."""
    holders = holders_of(plan)
    room = max_lines - 2 * len(plan.targets)
    total = len(plan.sub_metatrees)
    all_fit = total <= (room if plan.hops == 1 else room // 2)
    shown = heaviest(plan, total if all_fit else room // 4)
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
        if left := left_out(plan, shown, target):
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
                text.append(f" (share {share})", style="not bold")
        if len(holders) > 6:
            text.append(f", … ({len(holders) - 6} more)", style="not bold")
    return text


def _roots(plan: Plan, partition: Partition, limit: int) -> list[str]:
    """Return the roots dealt to a partition, with shares or ranges, in at most `limit` lines."""
    names = [
        printable(plan.sub_metatrees[i].root)
        + (f" (share {share} of the seeds)" if share.count > 1 else "")
        for i, share in partition.sub_metatrees.items()
    ] if plan.replication == "full" else [
        printable(r) + (" (nodes {:,} … {:,})".format(*partition.ranges[r])
                        if r in partition.ranges else
                        " ({:,} nodes, {:,} edges{})".format(
                            *partition.owned[r], _cut_nodes(plan, r))
                        if r in partition.owned else "")
        for r in partition.relations
    ]
    if len(names) > limit:
        names = [*names[:limit - 1], f"… ({len(names) - limit + 1:,} more)"]
    return names or ["(none)"]


def _cut_nodes(plan: Plan, relation: Relation) -> str:
    """How many nodes' in-edges by a relation lie on several partitions, if there are any."""
    hubs = len(plan.ownership[relation].hubs)
    return f"; in-edges of {hubs:,} node{'s' if hubs > 1 else ''} are cut" if hubs else ""


def _table(title: str, columns: Sequence[str], names: str = "") -> Table:
    """A table of numbers, which are never folded; one column may be of names."""
    rows = table(*columns, title=title, right=[c for c in columns if c != names])
    for column in rows.columns:
        column.no_wrap = column.header != names
        column.min_width = None if column.no_wrap else 12
    return rows


def _partition_table(plan: Plan, max_rows: int) -> Table:
    grouped = len(plan.groups) > 1
    dealt = "root relations" if plan.replication == "full" else "its own"
    columns = ["part", *(["group"] if grouped else []), dealt,
               "relations", "nodes", "edges", "weight"]
    rows = _table("Partitions", columns, names=dealt)
    for partition in plan.partitions[:max_rows]:
        style = _style(partition.index)
        limit = 8 if plan.num_parts <= 8 else 3
        rows.add_row(
            Text(str(partition.index), style=f"bold {style}"),
            *([str(partition.group)] if grouped else []),
            Text("\n".join(_roots(plan, partition, limit)), style=style),
            f"{len(partition.relations):,}", f"{partition.num_nodes:,}",
            f"{partition.num_edges:,}", f"{partition.weight:,}",
        )
    _more_rows(rows, plan, max_rows, 1 + grouped)
    return rows


def _cost_table(plan: Plan, costs: Sequence[PartitionCost], max_rows: int) -> Table:
    rows = _table("Predicted per partition", [
        "part", "topology", "features", "learnable", "memory", "boundary nodes",
        "partials per step"])
    for partition, cost in list(zip(plan.partitions, costs))[:max_rows]:
        memory = cost.topology_bytes + cost.feature_bytes + cost.learnable_bytes
        rows.add_row(
            Text(str(partition.index), style=f"bold {_style(partition.index)}"),
            human_bytes(cost.topology_bytes), human_bytes(cost.feature_bytes),
            human_bytes(cost.learnable_bytes), human_bytes(memory),
            f"{cost.boundary_nodes:,}", human_bytes(cost.partial_bytes + cost.gradient_bytes)
            if cost.partials_known else "not known",
        )
    _more_rows(rows, plan, max_rows, 1)
    return rows


def _more_rows(rows: Table, plan: Plan, max_rows: int, column: int) -> None:
    left = plan.num_parts - max_rows
    if left > 0:
        rows.add_row("…", *[""] * (column - 1), f"({left:,} more)")


def _totals(plan: Plan, costs: Sequence[PartitionCost]) -> Text:
    disk = human_bytes(max(cost.disk_bytes for cost in costs))
    return Text(f"weight max/min {balance(plan)} · replication factor "
                f"{plan.replication_factor():.2f} · {plan.boundary_nodes:,} boundary nodes · "
                f"staged, a partition is {disk} at most",
                style="bold")


def _layer_table(plan: Plan, relations: Sequence[Relation]) -> Table:
    layers = range(1, plan.hops + 1)
    rows = _table("Which partition runs what at which layer",
                   ["relation", *(f"layer {layer}" for layer in layers)], names="relation")
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
        rows.add_row(Text(printable(relation)), *cells)
    return rows


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


def _style(part: int) -> str:
    return _STYLES[part % len(_STYLES)]
