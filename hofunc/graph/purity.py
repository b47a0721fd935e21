"""What a function must not do while it is recorded, told from the ops that reach the tape."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

from hofunc.errors import BranchError, MutationError, UntracedError
from hofunc.graph.storage import effects, storage_key

if TYPE_CHECKING:
    from hofunc.graph.tape import Tape

_FUNCTION_APPLY = torch.autograd.Function.apply.__func__.__code__  # type: ignore[attr-defined]


def check_written(tape: "Tape", op: Any, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """Let an op write only to tensors that the function made itself; returns the tensors that it writes.

    Raises:
        MutationError: It writes to an input or to a captured tensor.
    """
    places = {argument.name: place for place, argument in enumerate(op._schema.arguments)}
    passed = [args[places[n]] if places[n] < len(args) else kwargs.get(n) for n in effects(op).writes]
    written = [tensor for tensor in tree_leaves(passed) if isinstance(tensor, torch.Tensor)]
    if not {storage_key(tensor) for tensor in written} <= tape.allocated().keys():
        raise MutationError(
            "hofunc: f is not pure",
            got=f"{op} writing to an input or to a captured tensor",
            expected="a function that leaves its inputs and all that it did not make itself as they are",
            remedy="Write to a clone, or pass the tensor as an argument and return its new value.",
        )
    return written


def check_branch(tape: "Tape", op: Any, operands: Iterable[int], out: Any) -> None:
    """Refuse an op that turns a batch of values into one Python number or into one shape.

    Raises:
        BranchError: The op depends on an input that stands for a batch.
    """
    if isinstance(out, bool | int | float | complex) or torch.Tag.dynamic_output_shape in op.tags:
        reached, seen = list(operands), set()
        while reached:
            index = reached.pop()
            if index in tape.batched:
                raise BranchError(
                    "hofunc: f depends on the value of a tensor under vmap",
                    got=f"{op}, which needs a single value",
                    expected="a function whose steps are the same for every member of the batch",
                    remedy="Use torch.where in place of the branch, or leave hod out of vmap and loop.",
                )
            if index not in seen:
                seen.add(index)
                reached.extend(tape.nodes[index].operands)


def check_context(tape: "Tape", op: Any, args: tuple) -> None:
    """Check an op that detaches, or that runs where autograd records nothing: all of it is a constant.

    Raises:
        UntracedError: It does so inside a backward pass or a custom autograd Function, not because f asks for it.
    """
    if torch._C._current_graph_task_id() != tape.task:
        _check_backward_pass(tape, op, args)
    if not torch.is_grad_enabled():
        _check_custom_function(op)


def _check_backward_pass(tape: "Tape", op: Any, args: tuple) -> None:
    """Refuse torch.autograd.grad inside the function where its result would lose its dependence on the inputs.

    A backward pass unpacks the values it saved as detached copies, and without create_graph it records nothing.

    Raises:
        UntracedError: A backward pass of plain autograd, inside f, uses a recorded value in either way.
    """
    if not torch.is_grad_enabled() or (op is torch.ops.aten.detach.default and id(args[0]) in tape.detached):
        raise UntracedError(
            "hofunc: f calls torch.autograd.grad or backward",
            got="a backward pass that detaches the recorded values",
            expected="derivatives inside f taken by torch.func or by hofunc",
            remedy="Use torch.func.grad, torch.func.jvp or hofunc.hod inside f.",
        )


def _check_custom_function(op: Any) -> None:
    """Refuse an op that runs inside a custom torch.autograd.Function, the backward of which would be ignored.

    Raises:
        UntracedError: A Function's apply is among the callers.
    """
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _FUNCTION_APPLY:
            name = getattr(frame.f_locals.get("cls"), "__name__", "a Function")
            raise UntracedError(
                "hofunc: f uses a custom torch.autograd.Function",
                got=f"{name}.apply, of which only the forward ({op}) can be recorded",
                expected="ops whose derivatives are known",
                remedy="Write the function with plain torch ops; its own backward is not used by hofunc.",
            )
        frame = frame.f_back  # type: ignore[assignment]
