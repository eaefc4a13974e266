"""Programs that are one step simpler than another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from tests.support.drawn.description import Child, Layer, Loop, Messages, Program


def simpler(program: Program) -> list[Program]:
    """All of them, those with fewest parts first."""
    found = [*_fewer_layers(program), *_loops(program)]
    for name, plain in (("inputs", []), ("head", "inside"), ("jumping", False),
                        ("first_width", 4)):
        if getattr(program, name) != plain:
            found.append(replace(program, **{name: plain}))
    for number, layer in enumerate(program.layers):
        for other in _layers(layer):
            layers = [*program.layers]
            layers[number] = other
            found.append(replace(program, layers=layers))
    return found


def _fewer_layers(program: Program) -> Iterator[Program]:
    if len(program.layers) > 1:
        for number in range(len(program.layers)):
            yield replace(program, layers=[x for i, x in enumerate(program.layers) if i != number])
        for number, layer in enumerate(program.layers):
            plain = Layer(children=[Child("GraphConv", {"norm": "right"})])
            if layer != plain:
                layers = [*program.layers]
                layers[number] = plain
                yield replace(program, layers=layers)


def _loops(program: Program) -> Iterator[Program]:
    loop, plain = program.loop, Loop(optimizer="SGD", steps=1)
    if loop != plain:
        yield replace(program, loop=plain)
    for each in fields(Loop):
        simple = getattr(plain, each.name)
        if getattr(loop, each.name) != simple:
            yield replace(program, loop=replace(loop, **{each.name: simple}))
    for extra in loop.extras:
        if len(loop.extras) > 1:
            yield replace(program, loop=replace(
                loop, extras=[x for x in loop.extras if x != extra]))


def _layers(layer: Layer) -> Iterator[Layer]:
    plain = Layer()
    for each in fields(Layer):
        simple: Any = getattr(plain, each.name)
        if each.name in ("kind", "children", "messages"):
            continue
        if getattr(layer, each.name) != simple:
            yield replace(layer, **{each.name: simple})
    for number, child in enumerate(layer.children):
        if len(layer.children) > 1:
            yield replace(layer, children=[child], deal=[0])
        easy = Child("GraphConv", {"norm": "right"})
        for other in (easy, replace(child, around=[]), replace(
                child, options={k: v for k, v in child.options.items() if k in ("norm", "kind")}),
                *(replace(child, around=[a]) for a in child.around)):
            if other != child:
                children = [*layer.children]
                children[number] = other
                yield replace(layer, children=children)
    for number, given in enumerate(layer.messages):
        if len(layer.messages) > 1:
            yield replace(layer, messages=[given])
        for simple in (Messages("copy_u", "sum"), replace(given, apply=""), replace(
                given, message="copy_u"), replace(given, reduce="sum")):
            if simple != given:
                messages = [*layer.messages]
                messages[number] = simple
                yield replace(layer, messages=messages)
