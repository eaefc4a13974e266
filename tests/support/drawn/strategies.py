"""Drawing programs."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.support.drawn import children, loop, messages, model, operations
from tests.support.drawn.description import Child, Layer, Loop, Messages, Program, to_json

VALUES: dict[str, dict[str, list[Any]]] = {
    "GraphConv": {"norm": ["right", "none", "both", "left"], "bias": [True, False],
                  "activation_": [None, "tanh", "relu", "elu"]},
    "SAGEConv": {"kind": ["mean", "gcn", "pool"], "bias": [True, False],
                 "activation_": [None, "tanh", "relu"]},
    "GATConv": {"pair": [False, True], "residual": [False, True], "bias": [True, False],
                "activation_": [None, "tanh", "elu"]},
    "GATv2Conv": {"residual": [False, True], "bias": [True, False],
                  "share_weights": [False, True]},
    "GINConv": {"kind": ["sum", "max", "mean"], "learn_eps": [False, True]},
}
"""Options of DGL's modules. SAGEConv's "lstm" is not among them: it depends on the order of a row's
neighbours, which DGL does not define."""
WIDTHS = st.sampled_from([2, 4, 6, 8])
TYPES = ("author", "field", "institution", "paper")


def few(values: Any, most: int = 2) -> Any:
    """None of them mostly, seldom several."""
    some = st.lists(st.sampled_from(list(values)), min_size=1, max_size=most, unique=True)
    return st.one_of(*[st.just([])] * 4, some)


@st.composite
def child(draw: Any) -> Child:
    kind = draw(st.one_of(
        st.sampled_from(["GraphConv", "SAGEConv", "GATConv", "GATv2Conv", "GINConv", "EdgeConv",
                         "DotGatConv"]), st.sampled_from(list(children.FUNCTIONS))))
    options = draw(st.fixed_dictionaries({
        key: st.sampled_from(values) for key, values in VALUES.get(kind, {}).items()}))
    if kind == "GraphConv":
        options["allow_zero_in_degree"] = True
    return Child(kind, options, draw(few(children.AROUND)))


@st.composite
def hetero(draw: Any) -> Layer:
    made = draw(st.lists(child(), min_size=1, max_size=3))
    extra = draw(st.sampled_from(["", "", "", *model.EXTRAS]))
    if extra == "weight":
        made = [Child("GraphConv", {"norm": "right", "bias": draw(st.booleans())}, c.around)
                for c in made]
    if "scale" in extra:
        made = [Child("keyword", {}, c.around) for c in made]
    if extra == "edge_weight":
        made = [c for c in made if c.kind in ("GraphConv", "SAGEConv", "GATConv", "GINConv")] or [
            Child("GraphConv", {"norm": "right"})]
    return Layer(
        kind="hetero", children=made,
        deal=draw(st.lists(st.integers(0, len(made) - 1), min_size=1, max_size=8)),
        shared=draw(st.booleans()), extra=extra,
        aggregate=draw(st.sampled_from(["sum", "mean", "max", "min", "stack",
                                        *messages.AGGREGATES])),
        given="pair" if any(c.options.get("residual") for c in made) else draw(
            st.sampled_from(["states", "states", "pair"])))


@st.composite
def multi(draw: Any) -> Layer:
    one = st.builds(Messages, st.sampled_from(list(messages.MESSAGES)),
                    st.sampled_from(list(messages.REDUCES)),
                    st.sampled_from(["", "", *messages.APPLIES]))
    return Layer(
        kind="multi", messages=draw(st.lists(one, min_size=1, max_size=3)),
        fields=draw(st.sampled_from(["same", "same", "own"])),
        cross=draw(st.sampled_from(["sum", "mean", "max", "min", "stack", *messages.AGGREGATES])),
        chosen=draw(st.sampled_from(["all", "all", *messages.CHOICES])))


@st.composite
def layer(draw: Any) -> Layer:
    made = draw(st.one_of(hetero(), hetero(), multi()))
    return Layer(**{
        **vars(made), "width": draw(WIDTHS), "self_loop": draw(st.booleans()),
        "without": draw(st.one_of(st.just([]), st.just([]), st.just([]), st.lists(
            st.sampled_from(TYPES[:3]), max_size=1))),
        "before": draw(st.one_of(*[st.just([])] * 2, few(operations.OPERATIONS, 1))),
        "after": draw(st.lists(st.sampled_from(list(operations.STEPS)), max_size=2))})


@st.composite
def programs(draw: Any) -> Program:
    """A program."""
    layers = draw(st.lists(layer(), min_size=1, max_size=2))
    training = Loop(
        style=draw(st.sampled_from([*["usual"] * 12, *loop.STYLES])),
        extras=draw(few(loop.EXTRAS)), optimizer=draw(st.sampled_from(list(loop.OPTIMIZERS))),
        weight_decay=draw(st.sampled_from([0.0, 0.1])), batch=draw(st.integers(3, 16)),
        steps=draw(st.integers(1, 3)), epochs=draw(st.integers(1, 2)))
    return Program(
        layers=layers, loop=training, inputs=draw(few(model.INPUTS)),
        head=draw(st.sampled_from(["inside", "inside", "outside"])),
        jumping=draw(st.booleans()), first_width=draw(WIDTHS))


def draw(count: int, number: int) -> list[Program]:
    """So many different programs; the same for the same number.

    Hypothesis begins with the simplest, and later varies what it has had: a few of each of many
    starts are more different.
    """
    found: dict[str, Program] = {}
    for start in range(10 * count):
        for program in _some(number * 100_000 + start)[1:]:
            found.setdefault(str(to_json(program)), program)
        if len(found) >= count:
            break
    return list(found.values())[:count]


def _some(number: int) -> list[Program]:
    some: list[Program] = []

    @seed(number)
    @settings(max_examples=4, phases=[Phase.generate], database=None, deadline=None,
              suppress_health_check=list(HealthCheck))
    @given(programs())
    def collect(program: Program) -> None:
        some.append(program)

    collect()
    return some


def singles() -> list[Program]:
    """Every part alone, in a program that is simple otherwise."""
    easy = Child("GraphConv", {"norm": "right"})
    first = Layer(children=[easy])
    made = [Program([first]), Program([first, first])]
    for kind in children.CHILDREN:
        made.append(Program([first, Layer(children=[Child(kind)])]))
        for key, values in VALUES.get(kind, {}).items():
            for value in values:
                given = "pair" if key == "residual" else "states"
                made.append(Program([first, Layer(
                    children=[Child(kind, {key: value})], given=given)]))
    for name in children.AROUND:
        for kind in ("GraphConv", "GATConv", "udf_mean"):
            one = Child(kind, {"norm": "right", "allow_zero_in_degree": True}
                        if kind == "GraphConv" else {}, [name])
            made.append(Program([first, Layer(children=[one])]))
    for name in ["sum", "mean", "max", "min", "stack", *messages.AGGREGATES]:
        made.append(Program([first, Layer(children=[easy], aggregate=name)]))
        made.append(Program([first, Layer(
            kind="multi", messages=[Messages("copy_u", "sum")], cross=name)]))
    for name in model.EXTRAS:
        made.append(Program([first, Layer(
            children=[Child("keyword") if "scale" in name else easy], extra=name)]))
    for name in messages.CHOICES:
        made += [Program([first, Layer(
            kind="multi", messages=[Messages("copy_u", "sum")], chosen=name, self_loop=True)]),
            Program([Layer(kind="multi", messages=[Messages("copy_u", "mean")], chosen=name,
                           self_loop=True), first])]
    both = [Messages("copy_u", "sum"), Messages("u_mul_v", "max")]
    for one in [[Messages(m, "sum")] for m in messages.MESSAGES] + [
            [Messages("copy_u", r)] for r in messages.REDUCES] + [
            [Messages("copy_u", "sum", a)] for a in messages.APPLIES] + [both]:
        for fields in ("same", "own"):
            made.append(Program([first, Layer(kind="multi", messages=one, fields=fields,
                                              self_loop=True)]))
    made += [Program([Layer(children=[easy], before=[name]), Layer(children=[easy], before=[name])])
             for name in operations.OPERATIONS]
    made += [Program([Layer(children=[easy], after=[name]), first]) for name in operations.STEPS]
    made += [Program([first, first], inputs=[name]) for name in model.INPUTS]
    made += [Program([first, first], Loop(style=name, steps=3)) for name in loop.STYLES]
    made += [Program([first, first], Loop(extras=[name], steps=3, epochs=2, batch=5))
             for name in loop.EXTRAS]
    made += [Program([first, first], Loop(optimizer=name, weight_decay=0.1, steps=3))
             for name in loop.OPTIMIZERS]
    made += [Program([first, first], jumping=True), Program([first, first], head="outside"),
             Program([first, Layer(children=[easy], given="pair")]),
             Program([first, Layer(children=[easy], shared=True)]),
             Program([first, Layer(children=[easy], without=["author"])])]
    return list({str(to_json(p)): p for p in made}.values())
