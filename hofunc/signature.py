"""What a plan is called with: the arguments that it was made for, and the check of others against them."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NoReturn

import torch

from hofunc.arguments import as_input
from hofunc.errors import PlanMismatchError
from hofunc.graph.identity import plain
from hofunc.graph.layout import memory_order
from hofunc.internals import TreeSpec, keystr, tree_flatten_with_path, tree_is_leaf
from hofunc.trees import tree_flatten, tree_unflatten


class Signature:
    """The arguments that a plan was made for, by structure, and the facts about each tensor.

    Args:
        name: Whose plan it is, for errors.
        args: The positional arguments.
        kwargs: The keyword arguments.
        inputs: Which of the tensors, in turn, may be passed as floats.
        strides: Whether the strides of tensors matter too.
        history: Whether it matters if autograd follows them.

    Attributes:
        names: How an error names each tensor: ``args[0]['w']``.
        facts: Shape, dtype and device of each tensor.
    """

    def __init__(
        self,
        name: str,
        args: tuple,
        kwargs: dict,
        inputs: Collection[int] = (),
        *,
        strides: bool = False,
        history: bool = False,
    ):
        self._name, self._inputs = name, inputs
        paths, self._spec = tree_flatten_with_path((args, kwargs))[0], tree_flatten((args, kwargs))[1]
        self._paths = tuple(_named(path) for path, _ in paths)
        self._others = {n: leaf for n, (_, leaf) in enumerate(paths) if not isinstance(leaf, torch.Tensor)}
        tensors = [(path, leaf) for path, leaf in paths if isinstance(leaf, torch.Tensor)]
        self.names = tuple(_named(path) for path, _ in tensors)
        self._labels = (*_FORM, *(("strides",) if strides else ()), *(("requires_grad",) if history else ()))
        self._fact = _reader(self._labels)
        self.facts = tuple(self._fact(leaf) for _, leaf in tensors)
        self._strides = tuple(leaf.stride() for _, leaf in tensors)
        self._is_flat = not kwargs and all(isinstance(arg, torch.Tensor) for arg in args)

    def __str__(self) -> str:
        supply = iter(zip(self.names, self.facts, strict=True))
        shown = []
        for place, path in enumerate(self._paths):
            if place in self._others:
                shown.append(f"{path}: {_brief(self._others[place])}")
            else:
                name, (shape, dtype, device, *_) = next(supply)
                on = "" if device.type == "cpu" else f" on {device}"
                shown.append(f"{name}: {str(dtype).removeprefix('torch.')} {tuple(shape)}{on}")
        return ", ".join(shown)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_fact"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._fact = _reader(self._labels)

    def tensors(self, args: tuple, kwargs: dict) -> Sequence[torch.Tensor]:
        """Return the tensors of a call, in the order in which pytrees are flattened, arguments first.

        One of other strides is copied into those of the plan: some ops, of which fused attention is one, were chosen
        for these, and compute something else from others.

        Raises:
            PlanMismatchError: The call has another structure, a tensor of another shape, dtype or device, or another
                value of what is no tensor.
        """
        if self._is_flat and not kwargs and len(args) == len(self.facts):
            return self._tensors(args)
        leaves = self._leaves(args, kwargs)
        for place, planned in self._others.items():
            if not _same(leaves[place], planned):
                self._refuse(self._paths[place], _brief(leaves[place]), _brief(planned))
        return self.tensors_among(leaves)

    def tensors_among(self, leaves: Sequence[Any]) -> Sequence[torch.Tensor]:
        """Return the tensors of a call as above, given the leaves of arguments of which the structure is known to fit.

        Raises:
            PlanMismatchError: A tensor is of another shape, dtype or device.
        """
        others = self._others
        return self._tensors([leaf for place, leaf in enumerate(leaves) if place not in others] if others else leaves)

    def _tensors(self, tensors: Sequence[Any]) -> list[torch.Tensor]:
        """Check the leaves that are to be tensors, and lay them out as planned."""
        fact = self._fact
        try:
            for tensor, expected in zip(tensors, self.facts, strict=True):
                if not isinstance(tensor, torch.Tensor) or fact(tensor) != expected:
                    tensors = self._checked(tensors)
            return [
                tensor if tensor.stride() == strides else _laid_out(tensor, strides)
                for tensor, strides in zip(map(plain, tensors), self._strides, strict=True)
            ]
        except RuntimeError:  # of torch, which tells no shape of what is nested, and no strides of what is sparse
            self._checked(tensors)
            raise

    def _leaves(self, args: tuple, kwargs: dict) -> list[Any]:
        """Return the leaves of a call in the order of those planned, in which the keys of its dicts need not be."""
        leaves, spec = tree_flatten((args, kwargs))
        if spec == self._spec:
            return leaves
        try:
            found = self._spec.flatten_up_to((args, kwargs))
        except ValueError:
            found = None
        if found is None or not all(map(tree_is_leaf, found)):
            self._refuse("the arguments", _shown(spec), _shown(self._spec))
        return found

    def _checked(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        """Return leaves that are to be tensors, floats as such where they may be passed."""
        tensors = [as_input(leaf) if place in self._inputs else leaf for place, leaf in enumerate(leaves)]
        for name, tensor, expected in zip(self.names, tensors, self.facts, strict=True):
            if not isinstance(tensor, torch.Tensor):
                self._refuse(name, _brief(tensor), "a tensor")
            if tensor.is_nested or tensor.layout is not torch.strided:
                self._refuse(name, "a tensor that is nested or sparse", "a dense one")
            for label, got, planned in zip(self._labels, self._fact(tensor), expected, strict=True):
                if got != planned:
                    as_text = tuple if label in {"shape", "strides"} else str
                    self._refuse(name, f"{label} {as_text(got)}", f"{label} {as_text(planned)}")
        return tensors

    def _refuse(self, what: str, got: str, expected: str) -> NoReturn:
        raise PlanMismatchError(
            f"{self._name}: {what} of a plan",
            got=got,
            expected=f"{expected}, as planned",
            remedy="Make another plan for such arguments, or call the transform itself.",
        )


def _laid_out(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """Return a tensor without gaps in memory, its axes in the order in which strides have them."""
    order = memory_order(strides)
    return tensor.permute(order).contiguous().permute([order.index(dim) for dim in range(len(order))])


_FORM = ("shape", "dtype", "device")
_form = attrgetter(*_FORM)


def _reader(labels: Sequence[str]) -> Callable[[torch.Tensor], tuple]:
    """Return what reads facts about a tensor, fast if they are its form."""
    return partial(_fact, labels) if tuple(labels) != _FORM else _form


def _fact(labels: Sequence[str], tensor: torch.Tensor) -> tuple:
    return tuple(tensor.stride() if label == "strides" else getattr(tensor, label) for label in labels)


def _named(path: tuple) -> str:
    """Name a leaf of ``(args, kwargs)``."""
    return ("kwargs" if path[0].idx else "args") + keystr(path[1:])


def _shown(spec: TreeSpec) -> str:
    """Show a structure of (args, kwargs), leaves as stars."""
    args, kwargs = tree_unflatten([_STAR] * spec.num_leaves, spec)
    return f"{args}" + (f" and {kwargs}" if kwargs else "")


class _Star:
    def __repr__(self) -> str:
        return "*"


_STAR = _Star()


def _brief(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _same(value: Any, planned: Any) -> bool:
    """Tell whether two values that are no tensors are surely the same to a function."""
    if value is planned:
        return True
    if type(value) is not type(planned):
        return False
    if isinstance(value, float | complex):
        return repr(value) == repr(planned)  # which keeps -0.0 apart from 0.0
    try:
        return bool(value == planned)
    except (TypeError, ValueError, RuntimeError):  # of arrays, for one
        return False
