"""A drawn program as text: its parts in words of Python, with the source of users' functions."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from tests.support.drawn import children, loop, messages, operations
from tests.support.drawn.description import Layer, Program


def text_of(program: Program) -> str:
    """The program, to be read."""
    lines = [f"states = inputs(ids, features)  # {program.first_width} wide" + _noted(
        program.inputs)]
    for number, layer in enumerate(program.layers):
        lines += [f"# layer {number}", *_layer(layer)]
    out = 'out = states["paper"]'
    if program.jumping:
        out += ' + linear layers of the first rows of all layers\' states["paper"]'
    lines += [out, "" if program.head == "none" else f"out = linear(out)  # {program.head} the "
              "wrapped module"]
    training = program.loop
    lines.append(f"# loop: {training.style}, {training.optimizer}(weight_decay="
                 f"{training.weight_decay}), batches of {training.batch}, {training.steps} steps, "
                 f"{training.epochs} epochs" + _noted(training.extras, ", "))
    used: list[Any] = [loop.STYLES[training.style]]
    for layer in program.layers:
        used += [operations.OPERATIONS[name] for name in layer.before]
        used += [children.FUNCTIONS[c.kind] for c in layer.children if c.kind in children.FUNCTIONS]
        used += [children.AROUND[name] for c in layer.children for name in c.around]
        used += [messages.AGGREGATES[name] for name in (layer.aggregate, layer.cross)
                 if name in messages.AGGREGATES]
    sources = {inspect.getsource(function): None for function in used}
    return "\n".join(lines) + "\n\n" + "\n".join(textwrap.dedent(s) for s in sources)


def _noted(names: list[str], before: str = "; ") -> str:
    return before + ", ".join(names) if names else ""


def _layer(layer: Layer) -> list[str]:
    lines = [f"states = {name}(block, states)" for name in layer.before]
    if layer.without:
        lines.append(f"states without {', '.join(layer.without)}")
    given = "(states, twice the destinations')" if layer.given == "pair" else "states"
    if layer.kind == "hetero":
        made = [f"{c.kind}({', '.join(f'{k}={v!r}' for k, v in c.options.items())})"
                + "".join(f" {a}" for a in c.around) for c in layer.children]
        lines += [f"child {i} = {text}" for i, text in enumerate(made)]
        dealt = f"children dealt {layer.deal}" + (", shared" if layer.shared else "")
        lines.append(f"states = HeteroGraphConv({dealt}, {layer.aggregate!r}; {layer.width} wide)"
                     f"(block, {given}" + (f", {layer.extra} by mod_args)" if layer.extra else ")"))
    elif layer.kind == "multi":
        functions = [f"({m.message}, {m.reduce}" + (f", {m.apply})" if m.apply else ")")
                     for m in layer.messages]
        lines.append(f"block.multi_update_all({', '.join(functions)} in turn for relations "
                     f"'{layer.chosen}', {layer.cross!r})  # {layer.width} wide, "
                     f"{layer.fields} fields")
    if layer.self_loop:
        lines.append("states += linear(destinations)")
    return [*lines, *(f"states = {step}(states)" for step in layer.after)]
