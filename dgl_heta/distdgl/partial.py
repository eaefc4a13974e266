"""What would see a part of a gradient, and is refused by name.

Under RAF a trainer's gradients are, until they are averaged, those of all trainers' losses by its
own machine's relations. Their sums are right; what one trainer sees of them is not what plain DGL
would show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from dgl_heta.errors import HetaError
from dgl_heta.raf.chain import is_link, walk, walk_below
from dgl_heta.system.nested import of_type

_FOR_ITSELF = ("set train.wrapper = ddp, by which every trainer computes all relations for its own "
               "seeds, or sample by a class of the script's own")
"""What computes without RAF, as plain DistDGL does."""


def check_hooks(module: nn.Module) -> None:
    """
    Raises
    ------
    HetaError
        A hook of the script's would be given a part of a gradient.
    """
    for name, parameter in module.named_parameters():
        after = getattr(parameter, "_post_accumulate_grad_hooks", None) or {}
        if parameter._backward_hooks or any(
                not getattr(hook, "dgl_heta", False) for hook in after.values()):
            raise HetaError(f"parameter {name} has a hook on its gradient, which would see this "
                            "machine's part of it alone; work on gradients after backward(), when "
                            "they are averaged")
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise HetaError(f"module {name or type(part).__name__} has a backward hook, which "
                            "would see this machine's part of a gradient alone; work on gradients "
                            "after backward(), when they are averaged")


def check_inputs(inputs: Any, wrapped: Sequence[nn.Parameter] | None = None) -> None:
    """
    Raises
    ------
    HetaError
        A tensor that is no parameter, and no rows of a DistEmbedding, would get a gradient; or a
        parameter that is none of the `wrapped` ones.
    """
    tensors = [x for x in of_type(Tensor, inputs) if x.requires_grad]
    leaves = [x for x in tensors if x.is_leaf] + [
        node.variable for node in walk(tensors) if hasattr(node, "variable")]
    for leaf in leaves:
        if not isinstance(leaf, nn.Parameter) and not getattr(leaf, "heta_rows", False):
            raise HetaError(
                f"a tensor of shape {tuple(leaf.shape)} below the first layer requires a gradient "
                "and is no nn.Parameter: a node has one row of inputs for the seeds of all "
                "trainers, so its gradient would be of all their losses, and what is made of it "
                "would reach their results. Weights are to be nn.Parameters of the module that "
                "DistributedDataParallel wraps; for gradients of inputs (perturbed inputs, "
                f"saliency) {_FOR_ITSELF}")
        if wrapped is not None and not any(leaf is p for p in wrapped):
            raise HetaError(
                f"a parameter of shape {tuple(leaf.shape)} below the first layer is not in "
                "DistributedDataParallel, so its gradient would be of this part's relations alone; "
                "wrap learnable embeddings with the model, or on their own")


def below_merges(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
    """Whether an input of `autograd.grad` is not above all exchanges that the outputs depend on.

    Raises
    ------
    HetaError
        Such an input is no parameter.
    """
    nodes = walk(outputs)
    links = [node for node in nodes if is_link(node)]
    if not links:
        return False
    above = set(nodes) - set(walk_below(links))
    leaves = {id(node.variable) for node in above if hasattr(node, "variable")}
    below = [x for x in inputs if not (id(x) in leaves if x.is_leaf else x.grad_fn in above)]
    for x in below:
        if not isinstance(x, nn.Parameter):
            raise HetaError(
                f"torch.autograd.grad with respect to a tensor of shape {tuple(x.shape)} below a "
                "merge of relations, which is no nn.Parameter, would give this machine's part of "
                f"the gradient, for the seeds of all trainers; {_FOR_ITSELF}")
    return bool(below)
