"""What a tensor is, whichever Python object holds it.

A tensor is known by its object, which torch keeps for as long as the tensor lives. But a subclass wraps what an op
returned in another object, an alias that no op made and no dispatch mode sees. Autograd knows it for a view, and so a
tensor is known by its place as well: the tensor that it is a view of, and where in its memory it lies.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn

import torch
from torch.nn import Parameter

from hofunc.errors import UntracedError
from hofunc.graph.layout import Layout, layout_of
from hofunc.internals import (
    base_of,
    count_dispatch_modes,
    count_function_modes,
    get_unwrapped,
    has_forward_level,
    identity_of,
    is_autograd_view,
    is_cut_view,
    is_functorch_wrapped_tensor,
    no_torch_function,
    tree_is_leaf,
    tree_leaves,
)

PLAIN = frozenset((torch.Tensor, Parameter))  # a parameter's ops are those of a tensor
_ATOMS = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout))


class Place(NamedTuple):
    """Where a tensor lies, as autograd has it.

    Attributes:
        root: The id of the tensor of which it is a view, or of itself.
        layout: Where it lies in the memory of the root.
        reading: Its dtype, and whether it conjugates or negates what it reads.
        is_cut: Whether it became a view where gradients were off, so that no derivative goes through it.
    """

    root: int
    layout: Layout
    reading: tuple[torch.dtype, bool, bool]
    is_cut: bool


def tensors_in(tree: Any) -> list[torch.Tensor]:
    """Return the tensors of a tree in order: twice as fast as flattening it, for what ops take and return."""
    found: list[torch.Tensor] = []
    _gather((tree,), found)
    return found


def _gather(items: Iterable, found: list[torch.Tensor]) -> None:
    for item in items:
        kind = type(item)
        if kind in _ATOMS:
            continue
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif kind is tuple or kind is list:
            _gather(item, found)
        elif kind is dict:
            _gather(item.values(), found)
        elif not tree_is_leaf(item):
            found += [leaf for leaf in tree_leaves(item) if isinstance(leaf, torch.Tensor)]


def root_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor of which a tensor is a view, or itself."""
    root = base_of(tensor) if is_autograd_view(tensor) else None
    return tensor if root is None else root


def place_of(tensor: torch.Tensor) -> Place:
    """Return where a tensor lies."""
    return Place(id(root_of(tensor)), layout_of(tensor), reading_of(tensor), is_cut_view(tensor))


def storage_key(tensor: torch.Tensor) -> int:
    """Return what identifies the storage of a tensor while it is alive; the tensor itself, if it has none."""
    if tensor.layout is not torch.strided:
        return id(tensor)
    return identity_of(tensor.untyped_storage())


def reading_of(tensor: torch.Tensor) -> tuple[torch.dtype, bool, bool]:
    """Return the dtype of a tensor, and whether it conjugates or negates what it reads."""
    return tensor.dtype, tensor.is_conj(), tensor.is_neg()


def innermost(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that transforms of torch.func have wrapped, or itself."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = get_unwrapped(tensor)
    return tensor


def lasting(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that autograd can keep, as it does where f has weights that it follows; none of inference mode.

    It is called outside of that mode.
    """
    return tensor.clone() if tensor.is_inference() else tensor


def alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return another tensor with the memory, the strides and the autograd history of a tensor, which is no view of it.

    So what is a view of the one is told from what is a view of the other. It is of no subclass.

    Raises:
        UntracedError: The tensor is nested, sparse, or of a class that computes ops out of sight.
    """
    check_elements(tensor)
    tensor = plain(tensor)
    if tensor.dim() == 0:
        return torch.ops.aten._unsafe_view.default(tensor, ())
    return tensor.unsafe_split(max(tensor.size(0), 1))[0]


def variable_of(tensor: torch.Tensor, *, follow: bool) -> torch.Tensor:
    """Return an alias of a tensor as above, which autograd follows if that is asked for and possible."""
    alias = alias_of(tensor)
    return _followed(alias) if follow else alias


def _followed(alias: torch.Tensor) -> torch.Tensor:
    has_gradient = (alias.is_floating_point() or alias.is_complex()) and not alias.is_inference()
    return alias.requires_grad_() if has_gradient and not alias.requires_grad else alias


class _Aliases(torch.autograd.Function):
    """Tensors with the memory and the history of others, and with the count of writes to it, which are no views."""

    @staticmethod
    def forward(ctx: Any, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)  # as of what is not used there is none
        return tuple([tensor.detach() for tensor in tensors])

    @staticmethod
    def backward(ctx: Any, *slopes: torch.Tensor) -> Any:  # noqa: ARG004 - as torch calls it
        return slopes


def variables_of(tensors: Sequence[torch.Tensor], *, follow: bool, are_plain: bool = False) -> list[torch.Tensor]:
    """Return such an alias of each of some tensors, a write to which is noticed as if it were to the tensor itself.

    What nobody follows is detached, which is no view either, and takes a third of the time. Where somebody looks on, to
    whom to detach may mean more, writes are not noticed.

    Args:
        tensors: The tensors.
        follow: Whether autograd is to follow them.
        are_plain: Whether all are known to be dense, and to have, or to need, no history; see `has_no_history`.
    """
    if is_looked_on() or not (are_plain or all(map(is_dense, tensors))):
        return [variable_of(tensor, follow=follow) for tensor in tensors]
    have_history = [not are_plain and tensor.requires_grad for tensor in tensors]
    aliases = [tensor.detach() for tensor in tensors]
    if True in have_history:
        followed = iter(_Aliases.apply(*compress(tensors, have_history)))
        aliases = [next(followed) if each else alias for each, alias in zip(have_history, aliases, strict=True)]
    return [_followed(alias) for alias in aliases] if follow else aliases


def is_looked_on() -> bool:
    """Tell whether somebody looks on, to whom to detach a tensor may mean more than to have no history."""
    return has_forward_level() or bool(count_dispatch_modes() or count_function_modes())


def are_like(check: Callable[..., bool], tensors: Sequence[torch.Tensor]) -> bool:
    """Tell whether plain tensors surely have the forms of others, given their `form_check`; no of nested ones."""
    return True not in map(_is_nested, tensors) and check(*tensors)


_is_nested = attrgetter("is_nested")  # of which torch ends the process if that is asked


def has_no_history(tensor: torch.Tensor) -> bool:
    """Tell whether autograd does not follow a tensor, which is dense and of no subclass."""
    return not tensor.requires_grad and is_dense(tensor)


def is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is of no subclass, and holds its numbers as they are."""
    return (
        type(tensor) in PLAIN
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_inference()
        and not tensor.is_neg()
        and not tensor.is_conj()
    )


def seen_as(alias: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return an alias of a tensor as what a function is to see: of the tensor's class, with its attributes."""
    if not _wraps_results(type(tensor)):
        return alias
    seen = alias.as_subclass(type(tensor))
    seen.__dict__.update(tensor.__dict__)
    return seen


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as one of no subclass, on which ops are torch's own."""
    return tensor if type(tensor) in PLAIN or _has_own_ops(type(tensor)) else tensor.as_subclass(torch.Tensor)


def _wraps_results(kind: type[torch.Tensor]) -> bool:
    """Tell whether the ops of a class are torch's own, but what they return is made one of the class."""
    no_function = kind.__torch_function__ is no_torch_function  # as a parameter has it
    return kind is not torch.Tensor and not no_function and not _has_own_ops(kind)


def _has_own_ops(kind: type[torch.Tensor]) -> bool:
    """Tell whether a class computes ops in a way of its own."""
    return kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def is_fake(value: object) -> bool:
    """Tell whether a tensor has no elements, but stands for one that has while torch traces."""
    return getattr(type(value), "__module__", "").startswith("torch._subclasses.")


def has_elements(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor has elements, which those on the meta device have not, and those that torch traces with."""
    return not tensor.is_meta and not is_fake(tensor)


def check_class(tensor: torch.Tensor) -> None:
    """Refuse a tensor of a subclass of which it cannot be told what is computed from what.

    Raises:
        UntracedError: The class computes ops in a way of its own, or the tensor was made in inference mode, in which
            autograd knows no views.
    """
    kind = type(tensor)
    if is_fake(tensor):
        return  # they stand for plain tensors while torch traces
    if _has_own_ops(kind):
        raise UntracedError(
            f"hofunc: f computes with a {kind.__name__}",
            got=f"a tensor of {_named(kind)}, a class with a __torch_dispatch__ of its own",
            expected="tensors whose ops are torch's own",
            remedy="Let f take and use the plain tensors that it holds, and wrap what f returns.",
        )
    if _wraps_results(kind) and tensor.is_inference():
        raise UntracedError(
            f"hofunc: f computes with a {kind.__name__} in inference mode",
            got=f"a tensor of the subclass {_named(kind)}",
            expected="plain tensors there",
            remedy="Use torch.no_grad() in place of torch.inference_mode(), or pass x.as_subclass(torch.Tensor).",
        )


def check_elements(tensor: torch.Tensor) -> None:
    """Refuse a tensor that is not an array of elements in memory.

    Raises:
        UntracedError: It is nested or sparse, or of a class as above.
    """
    if type(tensor) not in PLAIN:
        check_class(tensor)
    if tensor.is_nested:
        _refuse("a nested tensor", "Use a padded tensor and a mask.")
    if tensor.layout is not torch.strided:
        remedy = "Use its to_dense(), or add up x at its columns times its values by index_add at its rows."
        _refuse(f"one of layout {tensor.layout}", remedy)


def _refuse(got: str, remedy: str) -> NoReturn:
    raise UntracedError(
        "hofunc: f computes with a tensor that has no strides", got=got, expected="a dense tensor", remedy=remedy
    )


def _named(kind: type) -> str:
    """Name a class; one that code made by `type` may know no module."""
    return f"{getattr(kind, '__module__', '?')}.{kind.__qualname__}"
