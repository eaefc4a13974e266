"""What a user sees of a plan: pictures and tables in the terminal, and as an SVG."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from dgl_heta.errors import HetaError
from dgl_heta.graph.schema import Relation, Schema
from dgl_heta.planning.cost import predict
from dgl_heta.planning.making import make_plan
from dgl_heta.planning.plan import Plan
from dgl_heta.planning.workload import Workload
from dgl_heta.report import canvas, plan_picture, plan_terminal
from dgl_heta.report.text import human_bytes
from tests.support.plans import MAG


def wide_schema(types: int, relations: int) -> Schema:
    """Many relations between a few types; every type has one into itself."""
    names = [f"type{i}" for i in range(types)]
    edges = {Relation(t, "self", t): 7 for t in names}
    for i in range(relations):
        edges[Relation(names[i * 7 % types], f"rel{i}", names[i * i % types])] = 1000 + i
    return Schema(dict.fromkeys(names, 50), edges)


def shown(plan: Plan, width: int = 100, **options: Any) -> str:
    out = io.StringIO()
    plan_terminal.terminal(plan, predict(plan, Workload()), Console(file=out, width=width),
                           **options)
    return out.getvalue()


def picture(plan: Plan) -> ET.Element:
    return ET.fromstring(plan_picture.svg(plan, predict(plan, Workload())))


def words(element: ET.Element) -> str:
    return "\n".join(text.strip() for text in element.itertext() if text.strip())


# --- terminal -----------------------------------------------------------------------------


@pytest.mark.parametrize("width", [80, 100, 120])
def test_the_worked_example_reads_as_in_the_paper(width: int) -> None:
    text = shown(make_plan(MAG, "paper", 2, 2), width)
    assert re.search(r"paper cites paper .*weight 27,414,283 → partition 0", text)
    assert re.search(r"author writes paper .*weight 17,215,096 → partition 1", text)
    assert re.search(r"field rev-has_topic paper .*weight 15,806,510 → partition 1", text)
    assert re.search(r"0 +paper cites paper +3 +1,931,003 +25,483,280 +27,414,283", text)
    assert re.search(r"1 +author writes paper +5 +1,939,743 +30,345,474 +33,021,606", text)
    assert "weight max/min 1.20" in text
    assert "736,389 boundary nodes" in text
    assert max(map(len, text.splitlines())) <= width


def test_the_layer_table_tells_who_runs_a_relation_at_a_layer() -> None:
    text = shown(make_plan(MAG, "paper", 2, 2)).split("Which partition runs what")[1]
    assert re.search(r"author writes paper +0, 1 +1\n", text)
    assert re.search(r"paper cites paper +0 +0\n", text)
    assert re.search(r"paper has_topic field +1 +–\n", text)


def test_shared_sub_metatrees_show_their_shares_and_groups() -> None:
    text = shown(make_plan(MAG, "paper", 2, 7), 120)
    assert "→ partitions 0 (share 1/2), 1 (share 2/2), 4" in text
    assert "paper cites paper (share 2/2 of the seeds)" in text
    assert re.search(r"\n +6 +1 +field rev-has_topic paper", text), "group of partition 6"
    assert "2 groups of partitions" in text


def test_every_target_has_a_metatree_of_its_own() -> None:
    text = shown(make_plan(MAG, ["paper", "author"], 2, 3))
    assert "paper  target, 736,389 nodes" in text
    assert "author  target, 1,134,649 nodes" in text


@pytest.mark.parametrize("targets", [["type0"], ["type0", "type1"]])
def test_a_large_metatree_is_cut_and_says_by_how_much(targets: list[str]) -> None:
    plan = make_plan(wide_schema(12, 400), targets, 5, 40)
    text = shown(plan, 120, max_lines=30, max_rows=10)
    tree, table = text.split("Partitions", 1)
    assert len([line for line in tree.splitlines() if line]) <= 30
    drawn = len(re.findall(r"^├── (?!…)|^└── (?!…)", tree, re.M))
    left = sum(int(n) for n in re.findall(r"^└── … \((\d+) more\)", tree, re.M))
    assert drawn + left == len(plan.sub_metatrees)
    assert "(30 more)" in table
    assert "too many to list" in table


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("hops", [1, 2, 4])
def test_every_shape_of_plan_can_be_drawn(parts: int, hops: int) -> None:
    plan = make_plan(MAG, ["paper", "field"], hops, parts)
    assert "Partitions" in shown(plan, 80)
    assert f"{parts} partition" in words(picture(plan))


def test_an_empty_partition_and_metapaths_can_be_drawn() -> None:
    cites, writes = (MAG.find_relation(name) for name in ("cites", "writes"))
    plan = make_plan(MAG, "paper", None, 2, [(writes, cites), (writes,)],
                     assign=lambda weights, parts: [[0, 1], []], method="odd")
    text = shown(plan)
    assert "(none)" in text
    assert "∞ (an empty partition)" in text
    assert "0 relations" in words(picture(plan)).split("Partition 1")[1]


def test_names_with_markup_are_shown_as_they_are() -> None:
    schema = Schema({"[red]x[/]": 3, "y\x1b[31m": 4},
                    {Relation("y\x1b[31m", "[bold]", "[red]x[/]"): 5})
    text = shown(make_plan(schema, "[red]x[/]", 1, 1))
    assert "[bold] [red]x[/]" in text
    assert "\x1b" not in text


# --- SVG ----------------------------------------------------------------------------------


def test_the_svg_of_the_worked_example_has_every_relation_and_partition() -> None:
    plan = make_plan(MAG, "paper", 2, 2)
    text = words(picture(plan))
    for partition in plan.partitions:
        assert f"Partition {partition.index}" in text
        assert f"{partition.num_nodes:,} nodes · {partition.num_edges:,} edges" in text
        for relation in partition.relations:
            assert str(relation) in text
    for tree in plan.sub_metatrees:
        assert f"weight {tree.weight:,}" in text


def test_the_svg_is_inert_and_needs_nothing_else() -> None:
    text = plan_picture.svg(plan := make_plan(MAG, "paper", 2, 2), predict(plan, Workload()))
    assert text.count("http") == 1, "the namespace only"
    assert not re.search(r"<script|<style|<image|<use|href|url\(|\bon\w+=", text)
    assert not text.startswith("<?xml"), "can be put into a page as it is"


def test_a_large_plan_is_condensed_in_the_svg() -> None:
    plan = make_plan(wide_schema(10, 300), "type0", 4, 30)
    root = picture(plan)
    assert "22 more partitions" in words(root)
    assert f"{len(plan.sub_metatrees) - 8} more sub-metatrees" in words(root)
    assert float(root.get("height", "0")) < 2000


ANY = st.characters(exclude_categories=["Cs"], exclude_characters="\0")  # all that a name may have
NAMES = st.lists(st.text(ANY, max_size=30), min_size=1, max_size=4,
                 unique=True)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(names=NAMES, etype=st.text(ANY, max_size=30),
       hops=st.integers(1, 3), parts=st.integers(1, 6))
def test_no_name_breaks_a_drawing(names: list[str], etype: str, hops: int, parts: int) -> None:
    names = [*names, 'a<b&"c"']
    edges = {Relation(src, etype, dst): 10 + i * j
             for i, src in enumerate(names) for j, dst in enumerate(names)}
    plan = make_plan(Schema(dict.fromkeys(names, 5), edges), names[0], hops, parts)
    assert 'a<b&"c"' in words(picture(plan))
    shown(plan, 80).encode("utf-8")


def test_long_names_take_no_longer_than_what_is_shown_of_them(monkeypatch) -> None:
    measured: list[str] = []

    def width(text: str, size: float) -> float:
        measured.append(text)
        return 0.6 * size * len(text)

    monkeypatch.setattr(canvas, "text_width", width)
    monkeypatch.setattr(plan_picture, "text_width", width)
    a, b = ("au thor " * 12_500, "p" * 100_000)
    plan = make_plan(Schema({a: 5, b: 5}, {Relation(a, "w" * 100_000, b): 10,
                                           Relation(b, "c" * 100_000, b): 10}), b, 2, 2)
    assert len(ET.tostring(picture(plan))) < 50_000
    assert sum(map(len, measured)) < 50_000
    assert len(shown(plan)) < 50_000


@given(text=st.text(ANY, max_size=60), size=st.floats(5, 20), width=st.floats(0, 400))
def test_a_text_is_cut_where_it_is_as_long_as_can_be(text: str, size: float, width: float) -> None:
    cut = canvas.fit(text, size, width)
    if canvas.text_width(text, size) <= width:
        assert cut == text
        return
    kept = cut[:-1]
    assert cut == kept + "…"
    assert text.startswith(kept)
    assert not kept or canvas.text_width(cut, size) <= width * (1 + 1e-9)
    longer = text[:len(kept) + 1] + "…"
    assert len(kept) == len(text) or canvas.text_width(longer, size) > width * (1 - 1e-9)


def test_save_svg_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    plan = make_plan(MAG, "paper", 2, 2)
    path = tmp_path / "plan.svg"
    path.write_text("old")
    plan_picture.save_svg(plan, predict(plan, Workload()), path)
    ET.parse(path)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(HetaError, match="cannot write"):
        plan_picture.save_svg(plan, [], tmp_path / "nowhere" / "plan.svg")


@pytest.mark.parametrize(("count", "text"), [
    (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (119_606_480, "119.6 MB"),
    (9_996_000, "10.0 MB"), (999_960, "1.00 MB"), (3.2e18, "3,200.0 PB"),
])
def test_byte_counts_are_readable(count: float, text: str) -> None:
    assert human_bytes(count) == text
