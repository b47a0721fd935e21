"""What a number of each member of a batch picks: the entry ``scores[label]``, where vmap maps the labels.

torch reads a tensor of one integer that stands for an index, and takes the part that it finds: one part for the whole
batch. Taken by a tensor of indices, each member has a part of its own. So it is with `one_hot`, which reads what the
least and the greatest of its classes are.
"""

from collections.abc import Callable, Iterable, Set
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from hofunc.errors import BranchError
from hofunc.graph.identity import storage_key
from hofunc.internals import is_functorch_wrapped_tensor

PICKING = {Tensor.__getitem__, Tensor.__setitem__, one_hot}
_INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64)


class Picked:
    """Parts that were picked: each is a copy, where what one integer picks is a view.

    So nothing may write to it, and nothing may read it when what it was picked of has been written to.
    """

    def __init__(self) -> None:
        self._sources: dict[int, int] = {}  # the storages that they are of, by their own
        self._stale: set[int] = set()
        self._kept: list[Tensor] = []  # so that no key is used again

    def enter(self, part: Tensor, source: Tensor) -> None:
        """Note that a part was picked of a tensor, which may be a part itself."""
        key = storage_key(source)
        self._sources[storage_key(part)] = self._sources.get(key, key)
        self._kept += part, source

    def check_written(self, written: Iterable[Tensor]) -> None:
        """Refuse writes to parts, and note which are not what torch's views would be from now on.

        Raises:
            BranchError: There is one.
        """
        if self._sources:
            keys = {*map(storage_key, written)}
            _refuse(keys.intersection(self._sources), "a write to a part that was picked")
            self._stale.update(part for part, source in self._sources.items() if source in keys)

    def check_read(self, tensors: Iterable[Tensor]) -> None:
        """Refuse to read parts when what they were picked of has been written to.

        Raises:
            BranchError: One is.
        """
        if self._stale:
            _refuse(self._stale.intersection(map(storage_key, tensors)), "a part used after a write to the whole")


def _refuse(parts: Set[int], what: str) -> None:
    if parts:
        raise BranchError(
            "hofunc: f picks a part by an index that vmap maps, and writes where it lies",
            got=what,
            expected="parts that are used as they were picked",
            remedy="Write x[index] = x[index] + 1 in place of x[index] += 1, and clone what is used later.",
        )


class Picks:
    """Takes what tensors of one integer pick by tensors of indices, where these differ from member to member.

    Args:
        varies: Tells whether a tensor does.
        picked: What was picked is entered here.
    """

    def __init__(self, varies: Callable[[Tensor], bool], picked: Picked):
        self._varies, self._picked = varies, picked

    def call(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Call one of the functions that may pick."""
        if func is Tensor.__getitem__ and (found := self._taken_apart(*args)) is not None:
            part, dims = found
            for dim, index in reversed(dims):  # so that those before it are where they were
                part = part[_place(dim, index)].squeeze(dim)
            self._picked.enter(part, args[0])
            return part
        if func is Tensor.__setitem__ and (found := self._taken_apart(*args[:2])) is not None and len(found[1]) == 1:
            part, [(dim, index)] = found
            part[_place(dim, index)] = _laid(args[2], part, dim)
            return None
        if func is one_hot and (classes := self._classes(*args, **kwargs)) is not None:
            indices, number = classes
            zeros = torch.zeros(*indices.shape, number, dtype=indices.dtype, device=indices.device)
            return zeros.scatter(-1, indices.unsqueeze(-1), 1)
        return func(*args, **kwargs)

    def _classes(self, tensor: Tensor, num_classes: int = -1) -> tuple[Tensor, int] | None:
        """Return what `one_hot` is called with; None where it may, or has to, look how many classes there are."""
        if num_classes < 1 or is_functorch_wrapped_tensor(tensor) or not self._varies(tensor):
            return None
        return tensor, num_classes

    def _taken_apart(self, tensor: Tensor, key: Any) -> tuple[Tensor, list[tuple[int, Tensor]]] | None:
        """Return the part of a tensor that all but such indices take of it, and these by its axes; None without any.

        None as well where other tensors are among the indices, with which they would have to be paired.
        """
        keys = key if isinstance(key, tuple) else (key,)
        if not any(isinstance(each, Tensor) for each in keys):
            return None
        if not all(each is None or each is ... or isinstance(each, int | slice) or _is_index(each) for each in keys):
            return None
        if any(isinstance(each, bool) for each in keys):
            return None
        indices = [each for each in keys if isinstance(each, Tensor)]
        if not any(map(self._varies, indices)):
            return None
        dim, dims = 0, []
        for each in keys:
            if isinstance(each, Tensor):
                dims.append((dim, each))
            if each is ...:
                dim += tensor.dim() - sum(other is not None and other is not ... for other in keys)
            elif not isinstance(each, int):
                dim += 1
        return tensor[tuple([slice(None) if isinstance(each, Tensor) else each for each in keys])], dims


def _is_index(key: Any) -> bool:
    """Tell whether an index is a tensor of one integer, and not of those that a transform inside of f maps."""
    is_one = isinstance(key, Tensor) and key.dim() == 0 and key.dtype in _INTEGERS
    return is_one and not is_functorch_wrapped_tensor(key)


def _place(dim: int, index: Tensor) -> tuple[slice | Tensor, ...]:
    return (*[slice(None)] * dim, index.reshape(1))


def _laid(value: Any, part: Tensor, dim: int) -> Any:
    """Return what is written to a part at one place of an axis with that axis, of size one."""
    if not isinstance(value, Tensor):
        return value
    return value.expand([size for other, size in enumerate(part.shape) if other != dim]).unsqueeze(dim)
