"""An SVG under construction, and estimates of how wide its text is."""

from __future__ import annotations

import math
import unicodedata
import xml.etree.ElementTree as ET

from dgl_heta.report.text import printable

INK, GREY = "#1f2933", "#5f6c7b"


class Canvas:
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

    def text(self, x: float, y: float, text: str, size: float = 12, fill: str = INK,
             width: float = math.inf, **attributes: object) -> None:
        """One line of text; where `width` cuts it, the whole is kept as a tooltip."""
        shown = fit(printable(text), size, width)
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


def text_width(text: str, size: float) -> float:
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


def fit(text: str, size: float, width: float) -> str:
    """The text, cut with an ellipsis where it is wider than `width`."""
    if text_width(text, size) <= width:
        return text
    room = width - text_width("…", size)
    for end, char in enumerate(text):
        room -= text_width(char, size)
        if room < 0:
            return text[:end] + "…"
    return text
