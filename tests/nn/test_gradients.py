"""Operators that read one tensor add their gradients to one array, whatever view each was given."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dgl_heta.errors import HetaError
from dgl_heta.nn import BaseKernel, FusedKernel, TorchKernel, gradient_hub
from dgl_heta.sampling.blocks import InEdges
from dgl_heta.system.jit import COMPILES

pytestmark = pytest.mark.skipif(not COMPILES, reason="numba is not there: nothing is compiled")

FUSED, TORCH = FusedKernel(), TorchKernel()
RELATIONS = [InEdges(torch.tensor([0, 2, 2, 5]), torch.tensor([4, 0, 1, 4, 2], dtype=torch.int32)),
             InEdges(torch.tensor([0, 0, 1]), torch.tensor([3], dtype=torch.int32)),
             InEdges(torch.tensor([0]), torch.empty(0, dtype=torch.int32)),
             InEdges(torch.tensor([0, 3]), torch.tensor([4, 4, 0], dtype=torch.int32))]


def states() -> Tensor:
    return torch.arange(20, dtype=torch.float64).view(5, 4).div(9).sin().requires_grad_()


def as_scripts_do(kernel: BaseKernel, hidden: Tensor) -> Tensor:
    """Attention of two heads relation by relation, with a view for each; a sum, a maximum, scores
    of additive attention and rows read elsewhere besides."""
    total = hidden[1:3].pow(3).sum()
    for csc in RELATIONS:
        rows = len(csc.indptr) - 1
        queries = torch.linspace(-1, 1, rows * 4, dtype=torch.float64).view(rows, 2, 2)
        (scores,) = kernel.u_dot_v([csc], [hidden.view(-1, 2, 2)], [queries])
        (weights,) = kernel.edge_softmax([csc], [scores])
        (out,) = kernel.u_mul_e_sum([csc], [hidden.view(5, 2, 2)], [weights])
        (shared,) = kernel.u_mul_e_sum([csc], [hidden], [weights])
        (added,) = kernel.u_add_v([csc], [hidden], [queries.flatten(1)])
        sums = [kernel.reduce([csc], [hidden], op)[0] for op in ("sum", "mean", "max")]
        total = total + out.pow(2).sum() + shared.pow(2).sum() + added.pow(2).sum() + sum(
            (x ** 2).sum() for x in sums)
    return total


@pytest.mark.parametrize("way", [
    torch.tanh, lambda x: x, lambda x: x * 1, lambda x: torch.tanh(x).t().contiguous().t(),
    lambda x: torch.tanh(x)[:], lambda x: torch.cat([x, x])[5:]],
    ids=["function", "leaf", "product", "transposed", "slice", "part"])
def test_gradients_are_those_of_operators_alone(way: Callable[[Tensor], Tensor]) -> None:
    found = []
    for kernel in (FUSED, TORCH):
        leaf = states()
        as_scripts_do(kernel, way(leaf).contiguous()).backward()
        assert leaf.grad is not None
        found.append(leaf.grad)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("kernel", [FUSED, TORCH], ids=["fused", "torch"])
@pytest.mark.parametrize("view", [False, True], ids=["own", "view"])
def test_gradients_are_the_same_digits_each_time(kernel: BaseKernel, view: bool, two_threads: None
                                                 ) -> None:
    rows = torch.randint(0, 300, (3000,))
    states, factors = torch.randn(1000, 64), torch.randn(3000, 64)
    csc = InEdges(torch.arange(0, 30001, 10), torch.randint(0, 1000, (30000,), dtype=torch.int32))

    def gradients() -> list[Tensor]:
        x, queries = states.clone().requires_grad_(), factors.clone().requires_grad_()
        read = x[:] if view else x
        (chosen,) = kernel.gather([read], [rows])
        (scores,) = kernel.u_dot_v([csc], [read.view(-1, 4, 16)], [queries.view(-1, 4, 16)])
        total = (chosen * factors).sum() + scores.square().sum()
        return list(torch.autograd.grad(total, [x, queries]))

    first = gradients()
    for _ in range(10):
        assert all(map(torch.equal, gradients(), first))


def test_one_array_is_filled_for_all_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(shape: tuple[int, ...], *args: object) -> Tensor:
        made.append(tuple(shape))
        return torch.zeros(shape, dtype=torch.float64)
    monkeypatch.setattr(gradient_hub, "new_zeros", counted)
    as_scripts_do(FUSED, torch.tanh(states())).backward()
    assert made == [(5, 4)]


def test_one_graph_can_be_gone_through_twice_and_in_parts() -> None:
    """What one pass has added is not in the next one."""
    leaf, other = states(), torch.ones(1, dtype=torch.float64, requires_grad=True)
    out = as_scripts_do(FUSED, torch.tanh(leaf)) * other
    (first,) = torch.autograd.grad(out, leaf, retain_graph=True)
    torch.autograd.grad(out, other, retain_graph=True)
    (second,) = torch.autograd.grad(out, leaf)
    torch.testing.assert_close(first, second)


def test_a_tensor_that_was_changed_in_place_is_read_anew() -> None:
    leaf = states()
    hidden = leaf * 2
    before = FUSED.reduce(RELATIONS[:1], [hidden], "sum")[0]
    hidden.mul_(3)
    after = FUSED.reduce(RELATIONS[:1], [hidden], "sum")[0]
    (both,) = torch.autograd.grad((before + after).sum(), leaf)
    (one,) = torch.autograd.grad(FUSED.reduce(RELATIONS[:1], [leaf], "sum")[0].sum(), leaf)
    torch.testing.assert_close(both, one * (2 + 6))
    scores = FUSED.u_dot_v(RELATIONS[:1], [hidden], [torch.ones(3, 1, 4, dtype=torch.float64)])[0]
    weighted = FUSED.u_mul_e_sum(RELATIONS[:1], [hidden], [scores])[0].sum()
    hidden.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        weighted.backward()


def test_what_wants_no_gradient_gets_none() -> None:
    rows = states().detach()
    weights = torch.ones(5, 1, dtype=torch.float64, requires_grad=True)
    FUSED.u_mul_e_sum(RELATIONS[:1], [rows], [weights])[0].sum().backward()
    assert weights.grad is not None
    assert rows.grad is None
    leaf = states()
    unused = FUSED.reduce(RELATIONS[:1], [leaf], "sum")[0]  # noqa: F841
    (leaf.detach() * weights.sum()).sum().backward()
    assert leaf.grad is None


def both(function: Callable[[BaseKernel, Tensor], Tensor | None]) -> None:
    """A function gives the same gradients, a leaf's if it returns none, with either kernel."""
    found = []
    for kernel in (FUSED, TORCH):
        leaf = states()
        grad = function(kernel, leaf)
        grad = leaf.grad if grad is None else grad
        assert grad is not None
        found.append(grad)
    torch.testing.assert_close(*found)


def summed(kernel: BaseKernel, rows: Tensor) -> Tensor:
    return kernel.reduce(RELATIONS[:1], [rows], "sum")[0]


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_backward_pass_inside_another_loses_nothing(reentrant: bool) -> None:
    """Checkpointing with reentrant passes, between other operators on the same tensor."""
    def run(kernel: BaseKernel, leaf: Tensor) -> None:
        scale = torch.full((), 0.3, dtype=torch.float64, requires_grad=True)
        last = summed(kernel, leaf).sum()
        middle = checkpoint(lambda z: (summed(kernel, leaf) * z).pow(2).sum(), scale,
                            use_reentrant=reentrant)
        first = summed(kernel, leaf).pow(3).sum()
        (first + middle + last).backward()
    both(run)


def test_passes_on_several_threads_keep_apart() -> None:
    def run(kernel: BaseKernel, leaf: Tensor) -> Tensor:
        grads: dict[int, Tensor] = {}
        losses = [summed(kernel, leaf).pow(2).sum() * (i + 1) + summed(kernel, leaf).sum()
                  for i in range(8)]
        wait = threading.Barrier(len(losses))

        def one(number: int) -> None:
            wait.wait()
            grads[number], = torch.autograd.grad(losses[number], leaf)
        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(losses))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return torch.stack([grads[i] for i in range(len(losses))])
    for _ in range(5):
        both(run)


def test_a_tensor_detached_in_place_is_another_one() -> None:
    def run(kernel: BaseKernel, leaf: Tensor) -> Tensor:
        hidden = torch.tanh(leaf)
        before = summed(kernel, hidden).sum()
        hidden.detach_().requires_grad_()
        (before + summed(kernel, hidden).pow(2).sum()).backward()
        assert hidden.grad is not None
        assert leaf.grad is not None
        return torch.stack([leaf.grad, hidden.grad])
    both(run)


@pytest.mark.parametrize("own", [True, False])
def test_a_hook_on_a_view_sees_its_gradient_or_is_refused(own: bool) -> None:
    """`own`: the operator is given another shape of the view, as message passing makes it."""
    def read(kernel: BaseKernel, view: Tensor) -> Tensor:
        return summed(kernel, gradient_hub.shaped(view, 5, 4)) if own else (
            kernel.u_mul_e_sum(RELATIONS[:1], [view], [torch.ones(5, 2, dtype=torch.float64)])[0])

    def hooked(kernel: BaseKernel, leaf: Tensor) -> None:
        view = torch.tanh(leaf).view(5, 2, 2)
        view.register_hook(lambda grad: grad * 10)  # type: ignore[no-untyped-call]
        read(kernel, view).pow(2).sum().backward()

    def kept(kernel: BaseKernel, leaf: Tensor) -> Tensor | None:
        view = torch.tanh(leaf).view(5, 2, 2)
        view.retain_grad()
        read(kernel, view).pow(2).sum().backward()
        return view.grad
    both(hooked)
    both(kept)
    for observe in (lambda v: v.register_hook(lambda grad: grad), Tensor.retain_grad):
        view = torch.tanh(states()).view(5, 2, 2)
        out = read(FUSED, view).sum()
        observe(view)
        with pytest.raises(HetaError, match="a view of shape"):
            out.backward()
    view = torch.tanh(states()).view(5, 2, 2)
    out = read(FUSED, view).sum() + view.sum()
    with pytest.raises(HetaError, match="gradient of a view"):
        gradient_hub.check_views([view])
    gradient_hub.check_views([torch.tanh(states()).view(5, 2, 2), None])


def test_a_view_of_a_view_has_its_own_gradient() -> None:
    def run(kernel: BaseKernel, leaf: Tensor) -> None:
        view = torch.tanh(leaf).view(5, 2, 2)
        view.register_hook(lambda grad: grad * 10)  # type: ignore[no-untyped-call]
        summed(kernel, view.view(5, 4)).pow(2).sum().backward()
    both(run)


@pytest.mark.parametrize("kernel_call", [
    lambda s, d: FUSED.u_dot_v(RELATIONS[:1], [s], [d])[0],
    lambda s, d: FUSED.u_mul_e_sum(RELATIONS[:1], [s], [d.flatten(0, 1)[:5, :1]])[0],
    lambda s, d: FUSED.project([s], [d.flatten()[:4].view(4, 1)])[0]])
def test_a_second_differentiation_is_an_error(kernel_call: Callable[..., Tensor]) -> None:
    leaf, other = states(), torch.ones(3, 2, 4, dtype=torch.float64, requires_grad=True)
    for by in (leaf, other):
        with pytest.raises(HetaError, match="cannot be differentiated again"):
            torch.autograd.grad(kernel_call(leaf, other).sum(), by, create_graph=True)


def test_no_graph_is_kept_from_step_to_step() -> None:
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    gone = []
    for number in range(4):
        leaf = states()
        hidden = torch.tanh(leaf) @ weight
        loss = as_scripts_do(FUSED, hidden)
        gone += [weakref.ref(leaf), weakref.ref(hidden), weakref.ref(loss)]
        if number % 2:
            loss.backward()
        del leaf, hidden, loss
    assert [ref() for ref in gone] == [None] * len(gone)
