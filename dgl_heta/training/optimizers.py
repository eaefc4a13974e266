"""Optimizers and schedules of dense parameters, by their names in torch.

A name stands for a class of `torch.optim` or `torch.optim.lr_scheduler`, options for its arguments:
numbers, truth values, texts and lists of numbers, so that no setting can name code.

A schedule is not saved. What it does follows from its options and the epochs behind it, so a run
that goes on takes its steps again.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from dgl_heta.errors import InputError, listing, nearest
from dgl_heta.settings import TrainSettings
from dgl_heta.training.metrics import smaller_is_better

PLATEAU = "ReduceLROnPlateau"
_REFUSED = {
    "LBFGS": "it computes the loss several times in a step",
    "SparseAdam": "it is for sparse gradients, and those of dense parameters are not; learnable "
                  "features have a sparse Adam of their own (train.sparse_lr)",
    "LambdaLR": "it needs a function, which a setting cannot be",
    "MultiplicativeLR": "it needs a function, which a setting cannot be",
    "SequentialLR": "it is made of other schedules, and train.schedule is one",
    "ChainedScheduler": "it is made of other schedules, and train.schedule is one",
}
TOGETHER = ("Adam", "AdamW", "SGD")
"""Those that update all parameters in a few calls, which is the same to the last bit; in torch 2.2
ASGD then has another formula."""
_Option = bool | int | float | str | Sequence[float]


def make_optimizer(parameters: Iterable[nn.Parameter], train: TrainSettings
                   ) -> torch.optim.Optimizer:
    """The optimizer of dense parameters.

    Raises
    ------
    InputError
        An unknown name or option, one that cannot be used here, a value that torch refuses.
    """
    known = _classes(torch.optim, torch.optim.Optimizer)
    kind = _find("optimizer", train.optimizer, known)
    if inspect.signature(kind.step).parameters["closure"].default is inspect.Parameter.empty:
        raise InputError(f"train.optimizer = {train.optimizer} cannot be used: "
                         + _REFUSED["LBFGS"])
    arguments: dict[str, Any] = {"lr": train.lr}
    takes = inspect.signature(kind).parameters
    # torch does so by itself on GPUs alone. With weights for each relation, on a CPU too, calling
    # an operator takes longer than what it computes.
    if kind.__name__ in TOGETHER and not train.optimizer_options.keys() & {
            "foreach", "fused", "differentiable"}:
        arguments["foreach"] = True
    if "weight_decay" in takes:
        arguments["weight_decay"] = train.weight_decay
    elif train.weight_decay:
        raise InputError(f"train.optimizer = {train.optimizer} has no weight decay; leave "
                         "train.weight_decay out")
    return _make("optimizer", _uncompiled(kind), list(parameters), arguments,
                 train.optimizer_options)


def _uncompiled(kind: type[torch.optim.Optimizer]) -> Any:
    """A class of torch's without the wrappers that only torch.compile needs.

    At their first call they import torch._dynamo, with sympy and whatever else that finds
    installed: a second and 60 MB in every worker. What they wrap computes the same without them.
    """
    plain = {name: inspect.unwrap(getattr(kind, name)) for name in
             ("add_param_group", "load_state_dict", "state_dict", "zero_grad")}
    take_step = inspect.unwrap(kind.step)

    def step(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return take_step(self, *args, **kwargs)

    return type(kind.__name__, (kind,), {**plain, "step": step})


def state_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The state that an optimizer keeps of its parameters, as `INDEX.NAME` → tensor."""
    return {f"{index}.{name}": torch.as_tensor(value)
            for index, state in optimizer.state_dict()["state"].items()
            for name, value in state.items() if value is not None}


def load_state(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Take over what :func:`state_tensors` gave; options stay.

    Raises
    ------
    ValueError
        It is of another optimizer.
    """
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, saved in state.items():  # which have their parameter's dtype now (PyTorch 2.1)
        now = optimizer.state[parameters[number]]
        now.update({name: now[name].to(value.dtype) for name, value in saved.items()})


class Schedule:
    """A schedule of the learning rate of dense parameters, with a step after each epoch.

    Parameters
    ----------
    optimizer : whose learning rate it sets.

    Raises
    ------
    InputError
        An unknown name or option, one that cannot be used here, a value that torch refuses.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, train: TrainSettings) -> None:
        self._name = str(train.schedule)
        known = _classes(lr_scheduler, lr_scheduler.LRScheduler)
        known[PLATEAU] = lr_scheduler.ReduceLROnPlateau
        kind = _find("schedule", self._name, known)
        self.by_score = self._name == PLATEAU
        smaller = smaller_is_better(train.monitor)
        own = {"mode": "min" if smaller else "max"} if self.by_score else {}
        given = train.schedule_options.get("mode", own.get("mode"))
        if self.by_score and given != own["mode"]:
            raise InputError(
                f"train.schedule_options: mode = {given}, but of {train.monitor or 'the score'} "
                f"{'smaller' if smaller else 'larger'} is better; leave mode out")
        self._schedule = _make("schedule", kind, optimizer, own, train.schedule_options)

    def step(self, monitored: float | None) -> None:
        """The end of an epoch, with what is monitored, or None if it was not validated.

        Raises
        ------
        InputError
            The schedule is over: its options say that it has fewer epochs.
        """
        if self.by_score and monitored is None:
            return
        with warnings.catch_warnings():  # that the optimizer took no step, when it goes on
            warnings.simplefilter("ignore", UserWarning)
            try:
                self._schedule.step(*[monitored] if self.by_score else [])
            except (ValueError, TypeError, ArithmeticError) as error:
                raise InputError(f"train.schedule = {self._name}: {error}") from None

    def again(self, scores: Mapping[int, float | None], epochs: int) -> None:
        """Take the steps of the epochs behind a run that goes on, by the scores of each.

        Raises
        ------
        InputError
            The schedule follows the scores, and the log lacks some.
        """
        for epoch in range(1, epochs + 1):
            if self.by_score and epoch not in scores:
                raise InputError(f"train.schedule = {self._name} follows the validation scores, "
                                 f"and the log lacks that of epoch {epoch}; train in a new run "
                                 "directory")
            self.step(scores.get(epoch))


def check(train: TrainSettings) -> None:
    """Make both for a parameter that nobody has, and take all steps of the schedule.

    Raises
    ------
    InputError
        They cannot be used for this training.
    """
    optimizer = make_optimizer([nn.Parameter(torch.zeros(1, 1))], train)
    if train.schedule is None:
        if train.schedule_options:
            raise InputError("train.schedule_options are options of train.schedule, which is not "
                             "set; name a class of torch.optim.lr_scheduler there")
        return
    schedule = Schedule(optimizer, train)
    for _ in range(min(train.epochs, 10_000)):
        schedule.step(0.0)


def _classes(module: Any, base: type) -> dict[str, type]:
    """The public classes of a module of torch's that derive from another, by name."""
    classes = {name: value for name, value in vars(module).items() if not name.startswith("_")
             and isinstance(value, type) and issubclass(value, base) and value is not base}
    return {name: kind for name, kind in classes.items() if name == kind.__name__}


def _find(what: str, name: str, known: Mapping[str, Any]) -> Any:
    if name in _REFUSED and name in known:
        raise InputError(f"train.{what} = {name} cannot be used: {_REFUSED[name]}")
    usable = sorted(set(known) - set(_REFUSED))
    if name not in usable:
        alike = [each for each in usable if each.lower() == name.lower()]
        raise InputError(f"unknown train.{what} '{name}'; names: {listing(usable, 40)}"
                         + (f"; did you mean '{alike[0]}'?" if alike else nearest(name, usable)))
    return known[name]


def _make(what: str, kind: Any, first: Any, own: Mapping[str, Any],
          options: Mapping[str, _Option]) -> Any:
    names = list(inspect.signature(kind).parameters)[1:]
    for name in options:
        if name in ("lr", "weight_decay") and what == "optimizer":
            raise InputError(f"train.optimizer_options: '{name}' is a setting; set train.{name}")
        if name not in names:
            raise InputError(f"train.{what}_options: {kind.__name__} has no option '{name}'; "
                             f"options: {listing(names)}" + nearest(name, names))
    given = {name: tuple(value) if isinstance(value, list) else value
             for name, value in options.items()}
    try:
        return kind(first, **{**own, **given})
    except (TypeError, ValueError, RuntimeError, ArithmeticError, AssertionError) as error:
        raise InputError(f"train.{what} = {kind.__name__}: torch refuses its options: "
                         f"{error}") from None
