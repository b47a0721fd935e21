"""Operators that take functions: while a function is recorded, each of them is the Python that it stands for.

To `torch.cond` and its kin, torch gives what autograd, every transform and every mode make of the functions that they
take. Of plain Python no such rule is needed: the branch that is taken and the steps that are made are ops, which reach
all of them one by one. So the operator itself is replaced, before any of these see it. A value that decides is read as
by `.item()`: a plan compares it at every call, and under an outer vmap it has no single value.
"""

from collections.abc import Callable, Sequence
from functools import partial, wraps
from types import FunctionType
from typing import Any, NoReturn

import torch

from hofunc.errors import BranchError, UnsupportedOpError
from hofunc.graph.flexible import flex_attention
from hofunc.graph.tape import innermost_tape, is_recording
from hofunc.graph.uncompiled import uncompiled
from hofunc.internals import (
    HigherOrderOperator,
    TreeSpec,
    generic_associative_scan,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_get_level,
    operator_utils,
    tree_flatten,
    tree_leaves,
    tree_unflatten,
)

MAX_STEPS = 100_000  # of a while_loop; each takes some of the memory of the recording, and far fewer take long to plan


def _cond(pred: Any, true_fn: Callable, false_fn: Callable, operands: Sequence) -> Any:
    if _is_mapped(pred):
        return _selected(pred, true_fn(*operands), false_fn(*operands))
    return true_fn(*operands) if pred else false_fn(*operands)


def _while_loop(cond_fn: Callable, body_fn: Callable, carried: Sequence, additional: Sequence, **_: Any) -> Any:
    result, leaves = _as_carried(body_fn, carried), [*carried]
    for _step in range(MAX_STEPS):
        if not _is_true(cond_fn(*leaves, *additional)):
            return result
        result = body_fn(*leaves, *additional)
        leaves = _matching("while_loop", result, len(carried))
    raise UnsupportedOpError(
        "hofunc: a while_loop that does not end",
        got=f"{MAX_STEPS} steps",
        expected="a loop of fewer, each of which is recorded",
        remedy="See that its condition becomes false, or write it as a while loop of Python, which has no bound.",
    )


def _scan(combine_fn: Callable, init: Sequence, xs: Sequence, additional: Sequence) -> Any:
    leaves, steps = [*init], []
    spec = combine_fn.keywords.get("spec_init") if isinstance(combine_fn, partial) else None
    for row in zip(*[x.unbind() for x in xs], strict=True):
        result = combine_fn(*leaves, *row, *additional)
        if spec is not None:
            _matching("scan", result[0], spec.num_leaves)
        each, structure = tree_flatten(result)
        leaves = each[: len(init)]
        steps.append(each[len(init) :])
    return tree_unflatten([*leaves, *map(_stacked, zip(*steps, strict=True))], structure)


def _map(f: Callable, xs: Sequence, additional: Sequence, **_: Any) -> Any:
    results = [tree_flatten(f(*row, *additional)) for row in zip(*[x.unbind() for x in xs], strict=True)]
    rows = zip(*[leaves for leaves, _ in results], strict=True)
    return tree_unflatten([*map(_stacked, rows)], results[0][1])


def _associative_scan(combine_fn: Callable, xs: Sequence, additional: Sequence) -> Any:
    return generic_associative_scan(combine_fn, xs, additional_inputs=additional)


# What each operator stands for, by its name.
_PYTHON: dict[str, Callable] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
    "associative_scan": _associative_scan,
    "flex_attention": flex_attention,
    "strict_mode": lambda function, operands: function(*operands),
    "hints_wrapper": lambda function, args, kwargs, _hints: function(*args, **kwargs),
    "invoke_subgraph": lambda function, _identifier, *operands: function(*operands),
}
_PASSING = "custom_function_call"  # by which transforms apply custom Functions


def _is_mapped(value: Any) -> bool:
    """Tell whether a value is a tensor that a vmap inside the recorded function maps."""
    tape = innermost_tape()
    own = (tape.level if tape is not None else None) or 0
    while isinstance(value, torch.Tensor) and is_functorch_wrapped_tensor(value):
        if is_batchedtensor(value) and maybe_get_level(value) > own:
            return True
        value = get_unwrapped(value)
    return False


def _is_true(value: Any) -> bool:
    """Read the condition of a loop."""
    if _is_mapped(value):
        raise BranchError(
            "hofunc: a while_loop under a vmap inside f",
            got="a condition of which every row has its own",
            expected="one condition for all rows",
            remedy="Loop until the condition of no row holds, and use torch.where in the body.",
        )
    return bool(value)


def _selected(pred: torch.Tensor, true: Any, false: Any) -> Any:
    """Return what each row of a vmap takes of the results of both branches."""
    (trues, structure), (falses, other) = tree_flatten(true), tree_flatten(false)
    forms = [[(x.shape, x.dtype) if isinstance(x, torch.Tensor) else x for x in each] for each in (trues, falses)]
    if structure != other or forms[0] != forms[1]:
        raise UnsupportedOpError(
            "hofunc: torch.cond under a vmap inside f",
            got=f"branches that return {forms[0]} and {forms[1]}",
            expected="results of one structure, shape and dtype, of which every row takes its own",
            remedy="Return the same from both branches.",
        )
    chosen = pred.reshape(()) != 0
    pairs = zip(trues, falses, strict=True)
    rows = [torch.where(chosen, a, b) if isinstance(a, torch.Tensor) else a for a, b in pairs]
    return tree_unflatten(rows, structure)


def _matching(name: str, carried: Any, number: int) -> list[Any]:
    """Return the leaves of what a step carries on, of which there must be as many as before."""
    leaves = tree_leaves(carried)
    if len(leaves) != number:
        raise UnsupportedOpError(
            f"hofunc: {name} carries something else after a step",
            got=f"{len(leaves)} values",
            expected=f"{number}, as before the step",
            remedy="Return from each step as many values as it was given to carry.",
        )
    return leaves


def _as_carried(body_fn: Callable, leaves: Sequence) -> Any:
    """Return what a loop without a step returns: what it was given, of which torch keeps the structure in a closure."""
    names = body_fn.__code__.co_freevars if isinstance(body_fn, FunctionType) else ()
    if "in_spec" not in names:
        return tuple(leaves)
    spec: TreeSpec = body_fn.__closure__[names.index("in_spec")].cell_contents  # type: ignore[index]
    return tree_unflatten(leaves, spec)[0]


def _stacked(steps: tuple) -> Any:
    return torch.stack(steps) if isinstance(steps[0], torch.Tensor) else steps[0]


def _meant(call: Callable) -> Callable:
    """Return what calls an operator, or what it stands for while a function is recorded."""

    @wraps(call)
    def called(self: HigherOrderOperator, /, *args: Any, **kwargs: Any) -> Any:
        name = self.name()
        if name == _PASSING or not is_recording():
            return call(self, *args, **kwargs)
        if name not in _PYTHON:
            _refuse(name)
        return _PYTHON[name](*args, **kwargs)

    return called


def _refuse(name: str) -> NoReturn:
    raise UnsupportedOpError(
        f"hofunc: {name} inside f",
        got="an operator that takes functions or ops, of which a recording does not know what it makes of them",
        expected="ops, or control flow: torch.cond, while_loop, scan, map, associative_scan, flex_attention",
        remedy="Call the functions themselves.",
    )


def _as_it_is(compile_and_call: Callable) -> Callable:
    """Return what calls a function through torch.compile, but as it is while another one is recorded.

    Code that torch.compile meets under a mode it never compiles again, and then what torch itself does with the
    operators would fail ever after.
    """

    @wraps(compile_and_call)
    def called(function: Callable, args: tuple, kwargs: dict | None = None) -> Any:
        return (_call if is_recording() else compile_and_call)(function, args, kwargs)

    return called


@uncompiled
def _call(function: Callable, args: tuple, kwargs: dict | None) -> Any:
    return function(*args, **(kwargs or {}))


HigherOrderOperator.__call__ = _meant(HigherOrderOperator.__call__)  # type: ignore[method-assign]
operator_utils._hop_compile_and_call = _as_it_is(operator_utils._hop_compile_and_call)
