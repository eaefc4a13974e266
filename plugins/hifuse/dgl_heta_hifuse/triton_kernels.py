"""Passes over the edges of :class:`dgl_heta_hifuse.layer_edges.LayerEdges`, in Triton, on a GPU.

Each reads a row's edges once and writes what is of the size of the result: what
:mod:`dgl_heta_hifuse.layer_functions` does by PyTorch's operators one after the other. Tests
without a GPU run them by Triton's interpreter.
"""

import functools
import logging

import torch  # (no annotations as strings: the interpreter looks for constexpr among them)
import triton
import triton.language as tl
from torch import Tensor

from dgl_heta_hifuse.layer_edges import LayerEdges

log = logging.getLogger("dgl_heta")


def sums(states: Tensor, edges: LayerEdges, op: str) -> Tensor:
    """Sums or means of states (S, A) by the rows of their edges: (P, A)."""
    states, rows, width = states.contiguous(), len(edges.indptr) - 1, states.shape[1]
    out = states.new_empty((rows, width))
    block = min(triton.next_power_of_2(width), 256)
    _sums[(rows, triton.cdiv(width, block))](states, edges.source, edges.indptr, out, width,
                                             op == "mean", block)
    return out


def attend(items: Tensor, sent: Tensor, edges: LayerEdges) -> tuple[Tensor, ...]:
    """Messages (E, H, D) weighted by the softmax over each row's edges.

    Scores are LeakyReLU of the sum of an edge's item and its row's, (E + P, H). Returns what
    :func:`attend_backward` takes: the result (P, H, D), each edge's weight (E, H), which adds up to
    the third (P, H), and the items.
    """
    heads, width = sent.shape[1:]
    rows = len(edges.indptr) - 1
    out, total = sent.new_empty((rows, heads, width)), sent.new_empty((rows, heads))
    share = sent.new_empty((len(sent), heads))
    _attend[(rows, heads)](items, sent, edges.indptr, out, share, total, len(sent), heads, width,
                           triton.next_power_of_2(width))
    return out, share, total, items


def attend_backward(grad: Tensor, sent: Tensor, edges: LayerEdges, out: Tensor, share: Tensor,
                    total: Tensor, items: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of items and messages of :func:`attend`."""
    heads, width = sent.shape[1:]
    to_items, to_sent = torch.empty_like(items), torch.empty_like(sent)
    _attend_backward[len(out), heads](
        items, sent, edges.indptr, out, share, total, grad.contiguous(), to_items, to_sent,
        len(sent), heads, width, triton.next_power_of_2(width))
    return to_items, to_sent


def takes(values: Tensor, *others: Tensor) -> bool:
    """Return whether the kernels take these: values on a GPU, in single or double precision, and
    everywhere as many numbers as 32 bits count."""
    return (type(values) in (Tensor, torch.nn.Parameter) and values.is_cuda
            and values.dtype in (torch.float32, torch.float64)
            and all(x.numel() < 1 << 31 for x in (values, *others))
            and _works(values.device))


@functools.cache
def _works(device: torch.device) -> bool:
    """Return whether Triton runs on a device: it compiles with the machine's C compiler."""
    ends = torch.arange(2, device=device)
    values = torch.zeros((1, 1), device=device)
    try:
        _sums[(1, 1)](values, ends[:1].int(), ends, torch.empty_like(values), 1, False, 1)
    except Exception as error:  # whatever compilers and drivers raise
        log.warning("Triton does not run on %s, so PyTorch's operators are used: %s", device,
                    " ".join(str(error).split()) or type(error).__name__)
        return False
    return True


@triton.jit
def _sums(states, source, indptr, out, width, mean: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    columns = tl.program_id(1) * block + tl.arange(0, block)
    inside = columns < width
    low = tl.load(indptr + row)
    high = tl.load(indptr + row + 1)
    total = tl.zeros((block,), dtype=out.dtype.element_ty)
    for edge in range(low, high):
        at = tl.load(source + edge)
        total += tl.load(states + at * width + columns, mask=inside, other=0.0)
    if mean:
        total = total / tl.where(high > low, high - low, 1)
    tl.store(out + row * width + columns, total, mask=inside)


@triton.jit
def _total(values):  # type: ignore[no-untyped-def]
    return tl.sum(tl.expand_dims(values, 0), 1)  # (1,), as the interpreter knows no less


@triton.jit
def _score(items, edge, row_item, heads, head, one):  # type: ignore[no-untyped-def]
    score = tl.load(items + edge * heads + head + one) + row_item
    return tl.where(score > 0, score, score / 5.0)  # (0.2 would be rounded to single precision)


@triton.jit
def _attend(items, sent, indptr, out, share, total, edges, heads, width, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    head = tl.program_id(1)
    one = tl.arange(0, 1)
    columns = tl.arange(0, block)
    inside = columns < width
    low = tl.load(indptr + row)
    high = tl.load(indptr + row + 1)
    row_item = tl.load(items + (edges + row) * heads + head + one)
    top = tl.full((1,), float("-inf"), dtype=out.dtype.element_ty)
    for edge in range(low, high):
        score = _score(items, edge, row_item, heads, head, one)
        top = tl.where(score > top, score, top)
    weight = tl.zeros((1,), dtype=out.dtype.element_ty)
    summed = tl.zeros((block,), dtype=out.dtype.element_ty)
    for edge in range(low, high):
        part = tl.exp(_score(items, edge, row_item, heads, head, one) - top)
        tl.store(share + edge * heads + head + one, part)
        weight += part
        summed += part * tl.load(sent + (edge * heads + head) * width + columns, mask=inside,
                                 other=0.0)
    weight = tl.where(weight > 0, weight, 1.0)
    tl.store(total + row * heads + head + one, weight)
    tl.store(out + (row * heads + head) * width + columns, summed / weight, mask=inside)


@triton.jit
def _attend_backward(items, sent, indptr, out, share, total, grad, to_items, to_sent, edges, heads,  # type: ignore[no-untyped-def]
                     width, block: tl.constexpr):
    row = tl.program_id(0)
    head = tl.program_id(1)
    one = tl.arange(0, 1)
    columns = tl.arange(0, block)
    inside = columns < width
    low = tl.load(indptr + row)
    high = tl.load(indptr + row + 1)
    row_item = tl.load(items + (edges + row) * heads + head + one)
    of_row = (row * heads + head) * width + columns
    upper = tl.load(grad + of_row, mask=inside, other=0.0) / tl.load(total + row * heads + head
                                                                    + one)
    mean = _total(upper * tl.load(out + of_row, mask=inside, other=0.0))
    to_row = tl.zeros((1,), dtype=out.dtype.element_ty)
    for edge in range(low, high):
        of_edge = (edge * heads + head) * width + columns
        part = tl.load(share + edge * heads + head + one)
        message = tl.load(sent + of_edge, mask=inside, other=0.0)
        tl.store(to_sent + of_edge, upper * part, mask=inside)
        to_score = part * (_total(upper * message) - mean)
        score = tl.load(items + edge * heads + head + one) + row_item
        to_score = tl.where(score > 0, to_score, to_score / 5.0)
        tl.store(to_items + edge * heads + head + one, to_score)
        to_row += to_score
    tl.store(to_items + (edges + row) * heads + head + one, to_row)
