"""What a function must not do while it is recorded, told from the ops that reach the tape."""

from collections.abc import Callable, Container, Iterable
from typing import Any, NoReturn

import torch

from hofunc.errors import BranchError, FallbackWarning, MutationError, UntracedError, warn
from hofunc.graph.effects import effects
from hofunc.graph.identity import tensors_in
from hofunc.graph.ledger import Ledger
from hofunc.graph.node import Graph, Node
from hofunc.internals import (
    BackwardHookFunction,
    WrappedHook,
    backward_pass,
    count_handles,
    function_running,
    hooks_of,
)
from hofunc.options import is_known, records_forward

Owner = Callable[[torch.Tensor], torch.Tensor | None]

_WARNED: set[type] = set()
_LSTSQ = torch.ops.aten.linalg_lstsq.default
_BY_RANK = ("gelsd", "gelss")  # its drivers that return residuals, or none, by the rank that they find
_INDEX = torch.ops.aten.index.Tensor
_MASKED_SELECT = torch.ops.aten.masked_select.default
_OF_BATCHES = (torch.ops.aten._is_all_true.default, torch.ops.aten._is_any_true.default)  # one value under vmap
_OF_SHAPES = (torch.ops.aten.is_same_size.default, torch.ops.aten._has_same_storage_numel.default)  # not of values


def check_written(op: Any, args: tuple, kwargs: dict, owner: Owner) -> list[torch.Tensor]:
    """Let an op write only to storages that the function allocated itself; returns the tensors that it writes.

    Args:
        op: The op.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        owner: Returns the tensor for which the function allocated the storage of another, None if it did not.

    Raises:
        MutationError: It writes to an input or to a captured tensor.
    """
    names, places = effects(op).writes, effects(op).places
    passed = (args[at] if at < len(args) else kwargs.get(name) for name, at in zip(names, places, strict=True))
    written = tensors_in([*passed])
    if any(owner(tensor) is None for tensor in written):
        raise MutationError(
            "hofunc: f is not pure",
            got=f"{op} writing to an input or to a captured tensor",
            expected="a function that leaves its inputs and all that it did not make itself as they are",
            remedy="Write to a clone, and return that if its new value is wanted; for a module that writes to its "
            "buffers, as batch_norm in training does, see docs/how-to/buffers.md.",
        )
    return written


def check_replaced(ledger: Ledger, tensor: torch.Tensor) -> None:
    """Refuse other data for a tensor that the graph knows.

    Raises:
        MutationError: It does.
    """
    if ledger.nodes_of((tensor,)) or id(tensor) in ledger.constants:
        raise MutationError(
            "hofunc: f sets the data of a tensor that it has used",
            got=f"other data for a tensor of shape {tuple(tensor.shape)}",
            expected="tensors that keep what they hold",
            remedy="Use the other tensor in its place.",
        )


def shape_givers(op: Any, args: tuple, kwargs: dict) -> Any:
    """Return those of an op's arguments whose values, and not only their shapes, give the result its shape."""
    if torch.Tag.dynamic_output_shape not in op.tags:
        return ()
    if op is _MASKED_SELECT:
        return args[1]
    if op is _INDEX:  # an index of integers has a shape, a mask has only as many as it holds
        return [index for index in args[1] if index is not None and index.dtype in (torch.bool, torch.uint8)]
    if op is _LSTSQ and kwargs.get("driver") not in _BY_RANK:
        return ()
    return args, kwargs


def check_branch(ledger: Ledger, op: Any, args: tuple, kwargs: dict, out: Any) -> None:
    """Refuse an op that turns a batch of values into one Python number or into one shape.

    Raises:
        BranchError: The op depends on an input that stands for a batch.
    """
    is_value = isinstance(out, bool | int | float | complex) and op not in _OF_SHAPES
    check_unbatched(ledger, (args, kwargs) if is_value else shape_givers(op, args, kwargs), op)


def check_unbatched(ledger: Ledger, asked: Any, by: Any) -> None:
    """Refuse what needs the single value of a tensor that stands for a batch.

    Args:
        ledger: The graph so far.
        asked: The tensors.
        by: What needs their values.

    Raises:
        BranchError: One of them depends on an input that stands for a batch.
    """
    if depends_on_batch(ledger, asked):
        raise BranchError(
            "hofunc: f depends on the value of a tensor under vmap",
            got=f"{by}, which needs a single value",
            expected="a function whose steps are the same for every member of the batch",
            remedy="Use torch.where in place of the branch, or leave hod out of vmap and loop.",
        )


def depends_on_batch(ledger: Ledger, asked: Any) -> bool:
    """Tell whether one of some tensors depends on an input that stands for a batch."""
    reached, seen = ledger.nodes_of(tensors_in(asked)), set()
    while reached:
        index = reached.pop()
        if index in ledger.batched:
            return True
        if index not in seen and ledger.nodes[index].op not in _OF_BATCHES:
            seen.add(index)
            reached.extend(ledger.nodes[index].operands)
    return False


def claims_of(graph: Graph) -> list[Node]:
    """Return what a recording on one member of a batch takes to be true or false of all of them, see `check_claim`."""
    return [node for node in graph.nodes if node.op in _OF_BATCHES]


def check_claim(node: Node, recorded: torch.Tensor, got: torch.Tensor) -> None:
    """Refuse what is true of the one member of a batch that was recorded, or false, and not so of all.

    Of whether all elements are true, or any, vmap has one answer for a whole batch, on which a function may branch; it
    is how distributions check what they are given.

    Args:
        node: The node that tells.
        recorded: What it tells of that member.
        got: What it tells of the batch.

    Raises:
        BranchError: They differ.
    """
    if bool(got) is not bool(recorded):
        raise BranchError(
            "hofunc: f depends on the value of a tensor under vmap",
            got=f"{bool(got)} from {node.op} for all members of a batch, and {bool(recorded)} for the first",
            expected="members that are all alike in this, as where distributions check what they are given",
            remedy="See which members differ, use torch.where in place of a branch, or leave hod out of vmap and loop.",
        )


class BackwardPass:
    """Tells a backward pass of plain autograd inside the function from what the function computes.

    Without create_graph, or where a custom Function is differentiable once only, its result does not depend on the
    inputs any more, as far as autograd knows.
    """

    def __init__(self) -> None:
        self._outer = backward_pass()

    @property
    def is_on(self) -> bool:
        """Whether there is one."""
        return backward_pass() != self._outer

    def check(self) -> None:
        """Check an op of a tracked tensor that runs with autograd off.

        Raises:
            UntracedError: It belongs to a backward pass that f started.
        """
        if self.is_on:
            raise UntracedError(
                "hofunc: f calls torch.autograd.grad or backward",
                got="a backward pass that autograd does not record",
                expected="one of ops that can be differentiated again",
                remedy="Pass create_graph=True, or take torch.func.grad, torch.func.jvp or hofunc.hod inside f.",
            )


class Hooks:
    """Tells what f hooks into backward passes, which changes the gradients that they pass on and is not recorded.

    A hook of a tensor is an attribute of it. One of a step of autograd is hidden, and asking for it takes as long as
    recording an op; but there is none unless a handle was made since the recording began.
    """

    def __init__(self) -> None:
        self._first = count_handles()

    def check(self, tensors: Iterable[torch.Tensor], given: Container[int]) -> None:
        """Refuse hooks of tensors and of the steps of autograd that lead to them.

        Args:
            tensors: The tensors.
            given: The ids of those that f captured, whose hooks belong to whom they do.

        Raises:
            UntracedError: There is one.
        """
        is_first = self._first == count_handles()
        for tensor in filter(hooks_of, tensors) if is_first else tensors:
            if id(tensor) in given:
                continue
            if hooks := hooks_of(tensor):
                _refuse_hook(next(iter(hooks.values())), f"a tensor of shape {tuple(tensor.shape)}")
            if not is_first and tensor.grad_fn is not None:
                _check_step(tensor.grad_fn)


def _check_step(step: Any) -> None:
    """Refuse a hook of a step of autograd."""
    for register in (step.register_hook, step.register_prehook):
        handle = register(_no_hook)
        hooks = handle.hooks_dict_ref()
        handle.remove()
        if hooks:
            _refuse_hook(next(iter(hooks.values())), step.name())


def _no_hook(*_: Any) -> None:
    """Change no gradient."""


def _refuse_hook(hook: Any, of: str) -> NoReturn:
    name, what = getattr(hook, "__name__", hook), "f calls register_hook"
    if isinstance(hook, WrappedHook) or hook is BackwardHookFunction:
        what, of = "f calls a module that has a backward hook", "a module"
    raise UntracedError(
        f"hofunc: {what}",
        got=f"the hook {name} of {of}",
        expected="a function whose derivatives are those of its ops",
        remedy="Register the hook on what hofunc returns, or write what it does to gradients as an op of f.",
    )


class FunctionMet(BaseException):
    """A custom Function is running that can be recorded as one op, if f is recorded again.

    Attributes:
        function: Its class.
    """

    def __init__(self, function: Any):
        super().__init__(function)
        self.function = function


class Applied:
    """The custom Function that was applied last, whatever its forward is taken for."""

    latest: Any = torch.autograd.Function


def is_in_forward() -> bool:
    """Tell whether an op runs inside a custom torch.autograd.Function of which the forward is to be recorded.

    Raises:
        FunctionMet: It runs inside another one.
    """
    function: Any = function_running()
    if function is BackwardHookFunction:
        _refuse_hook(function, function.__name__)
    if function is None:
        return False
    if function is torch.autograd.Function:  # torch itself makes a view of what the latest forward returned
        function = Applied.latest
    if records_forward(function):
        if function not in _WARNED and not is_known(function):
            _WARNED.add(function)
            warn(
                f"hofunc: of {function.__name__}, a custom torch.autograd.Function, the forward is recorded, and its "
                "own backward is not used, as hofunc.options(functions=...) has it.",
                FallbackWarning,
            )
        return True
    raise FunctionMet(function)


def is_in_recorded_forward() -> bool:
    """Tell whether a custom torch.autograd.Function is running of which options say that the forward is recorded."""
    function = function_running()
    return function is not None and records_forward(function)


def check_forward(*, is_lost: bool, by: str) -> None:
    """Refuse what a recorded forward does out of sight, of which its own backward would know.

    Args:
        is_lost: Whether it is done to what depends on an input.
        by: What does it.

    Raises:
        UntracedError: It does.
    """
    if is_lost and is_in_recorded_forward():
        raise UntracedError(
            "hofunc: the forward of a custom torch.autograd.Function computes out of sight",
            got=f"{by} of what depends on an input",
            expected="a forward of ops, if that is what is to be recorded",
            remedy="Take the Function out of hofunc.options(functions=...) if it is there, and enter a rule for it "
            "(docs/how-to/adding-an-op.md), or write it with plain torch ops.",
        )


def refuse_function(function: Any, cause: BaseException | None = None) -> NoReturn:
    """Refuse a custom torch.autograd.Function of which neither the backward nor the forward can be used.

    Raises:
        UntracedError: Always.
    """
    raise UntracedError(
        "hofunc: f uses a custom torch.autograd.Function",
        got=f"{function.__name__}.apply without a setup_context, of which only the forward can be recorded",
        expected="ops whose derivatives are known",
        remedy="If its backward is the derivative of its forward, set hofunc.options(functions='forward'). Or write it "
        "with plain torch ops, or enter a rule for it (docs/how-to/adding-an-op.md).",
    ) from cause
