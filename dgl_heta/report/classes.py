"""Per-class results in a report: a table, the worst confusions, a picture where classes are few."""

from __future__ import annotations

import base64
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dgl_heta.report.canvas import GREY, INK, Canvas
from dgl_heta.report.figures import as_mapping, as_number, percent
from dgl_heta.report.page_parts import Picture, Section, Table
from dgl_heta.report.text import printable

_SHOWN, _WORST, _CONFUSIONS, _DRAWN = 50, 25, 10, 20


def class_sections(summary: Mapping[str, Any]) -> Iterator[Section]:
    """A section for each node type whose classes a run recorded."""
    of_classes = as_mapping(summary.get("classes"))
    what = "test" if of_classes.get("split") == "test" else "validation"
    types = as_mapping(of_classes.get("types"))
    for ntype, one in types.items():
        recorded = as_mapping(one)
        classes = [each for each in map(as_mapping, _list(recorded.get("classes")))
                   if isinstance(each.get("class"), int)]
        names = {each.get("class"): printable(each.get("name", each.get("class")))
                 for each in classes}
        support = {each.get("class"): as_number(each.get("support")) or 0.0 for each in classes}
        pictures = [picture] if (picture := _matrix(recorded.get("matrix"), names)) else []
        shown, note = classes, []
        if len(classes) > _SHOWN:
            there = [each for each in classes if support[each.get("class")]]
            shown = sorted(there, key=lambda each: as_number(each.get("f1")) or 0.0)[:_WORST]
            note = [f"The {len(shown)} classes with the lowest F1, of "
                    f"{as_number(recorded.get('number')) or len(classes):,.0f}; summary.json has "
                    "more."]
        tables = [
            Table(["class", "precision", "recall", "F1", "nodes", "predicted"],
                  [(names[each.get("class")], *(_share(each.get(key)) for key in
                                                ("precision", "recall", "f1")),
                    *(_count(each.get(key)) for key in ("support", "predicted")))
                   for each in shown], range(1, 6), narrow=True),
            Table(["true class", "predicted", "nodes", "of the true class"],
                  [_confusion(as_mapping(each), support)
                   for each in _list(recorded.get("confusions"))[:_CONFUSIONS]], (2, 3),
                  caption="Worst confusions", narrow=True)]
        yield Section(f"Classes of {printable(ntype)}, {what}" if len(types) > 1 else
                      f"Classes, {what}", pictures, [table for table in tables if table.rows],
                      notes=note)


def _confusion(one: Mapping[str, Any], support: Mapping[Any, float]) -> tuple[str, ...]:
    names, label = one.get("names"), one.get("true")
    there = support.get(label, 0.0) if isinstance(label, int) else 0.0
    true, predicted = (names if isinstance(names, list) and len(names) == 2 else
                       (one.get("true"), one.get("predicted")))
    return (printable(true), printable(predicted), _count(one.get("count")),
            percent(as_number(one.get("count")) or 0.0, there) or "–")


def _matrix(value: Any, names: Mapping[Any, str]) -> Picture | None:
    """The confusion matrix: a row for each true class, darker where more of it are predicted so."""
    rows = [[as_number(count) or 0.0 for count in _list(row)] for row in _list(value)]
    size = len(rows)
    if not 2 <= size <= _DRAWN or any(len(row) != size for row in rows):
        return None
    labels = [names.get(i, str(i)) for i in range(size)]
    data = base64.b64encode(_drawn(rows, labels).encode("utf-8")).decode("ascii")
    return Picture(f"data:image/svg+xml;base64,{data}", "Confusion matrix",
                   "Nodes of each true class (rows) by what was predicted (columns); colours are "
                   "shares of the row.")


def _drawn(rows: Sequence[Sequence[float]], labels: Sequence[str]) -> str:
    canvas, size = Canvas(), len(rows)
    cell, left, top = (46.0 if size <= 12 else 30.0), 190.0, 118.0
    width, height = left + cell * size + 90, top + cell * size + 8
    canvas.root.attrib |= {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}",
                           "height": f"{height:g}"}
    for i, label in enumerate(labels):
        canvas.text(left - 8, top + cell * (i + 0.5) + 4, label, width=left - 16,
                    text_anchor="end")
        x = left + cell * (i + 0.5)
        canvas.text(x, top - 8, label, width=120, fill=GREY,
                    transform=f"rotate(-40 {x:g} {top - 8:g})")
    for true, row in enumerate(rows):
        total = sum(row)
        for predicted, count in enumerate(row):
            share = count / total if total else 0.0
            x, y = left + cell * predicted, top + cell * true
            canvas.rect(x + 1, y + 1, cell - 2, cell - 2, _shade(share, true == predicted), rx=3)
            if count and size <= 12:
                canvas.text(x + cell / 2, y + cell / 2 + 4, _short(count), size=11,
                            fill="#ffffff" if share > 0.55 else INK, text_anchor="middle")
    return ET.tostring(canvas.root, encoding="unicode")


def _shade(share: float, right: bool) -> str:
    """From nearly white to blue where the class is right, to red where it is not."""
    low, high = (243, 245, 248), ((43, 108, 176) if right else (197, 48, 48))
    return "#" + "".join(f"{round(a + (b - a) * min(max(share, 0.0), 1.0)):02x}"
                         for a, b in zip(low, high))


def _short(count: float) -> str:
    return f"{count:,.0f}" if count < 10_000 else f"{count / 1000:,.0f}k"


def _share(value: Any) -> str:
    number = as_number(value)
    return "–" if number is None else f"{number:.4f}"


def _count(value: Any) -> str:
    number = as_number(value)
    return "–" if number is None else f"{number:,.0f}"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
