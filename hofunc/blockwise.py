"""A derivative by several tensors, or of several outputs: its blocks, under the names that a caller has for them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product
from typing import Any

import torch

from hofunc.arguments import Arguments
from hofunc.derivative import Derivative, nbytes_of
from hofunc.given import refuse
from hofunc.internals import TreeSpec, default_collate_fn_map, register_pytree_node
from hofunc.internals import tree_flatten as flattened
from hofunc.keypaths import part_of
from hofunc.run.nest import nested
from hofunc.sparse import Matrix, as_csr, as_scipy, put_together
from hofunc.structured.checks import checked_pairs
from hofunc.structured.plotted import plotted
from hofunc.structured.saved import VERSION, check_version, stacked
from hofunc.trees import tree_flatten, tree_unflatten

_NAME = "hofunc.Blocks"

Keyed = Mapping[tuple[int, tuple[int, ...]], Derivative]


@dataclass(frozen=True, slots=True)
class Names:
    """What the blocks of a derivative are named by.

    Attributes:
        outputs: The structure of what f returned.
        arguments: The arguments, without their values.
    """

    outputs: TreeSpec
    arguments: Arguments

    @property
    def slot(self) -> TreeSpec:
        """The structure of what it is differentiated by, as a derivative has it at each slot."""
        return self.arguments.spec

    @property
    def of_outputs(self) -> Arguments:
        """What f returned as if it were its only argument, for parts of it to be named."""
        return Arguments([], (), self.outputs, ((None,), {}), (0,), (self.outputs,), _NAME)

    def __hash__(self) -> int:
        return hash((self.outputs, self.slot))


def names_of(outputs: TreeSpec, arguments: Arguments) -> Names:
    """Return what blocks are named by, given the structure of what f returned and the arguments of a call."""
    rest = ((None,) * len(arguments.rest[0]), dict[str, Any]())
    return Names(outputs, arguments._replace(leaves=[], rest=rest, operands=(), form=0))


class Blocks:
    """The blocks of a derivative by several tensors or of several outputs, each a `hofunc.Derivative`.

    `hofunc.hod` returns them with ``layout="compact"``. They are nested as dense derivatives are: what `tree` takes as
    an index, iteration and names of attributes, such as ``blocks["w"]["b"]`` or ``blocks[0][1]``, is passed on to it.
    They are a pytree; where its derivatives are mapped to anything else, it becomes the tree of that.

    Attributes:
        tree: The blocks, nested by the structure of the output and by that of the arguments for every slot.
        names: What they are named by.

    Example:
        >>> def f(w, b, x):
        ...     return ((x @ w + b) ** 3).sum()
        >>> w, b, x = torch.ones(2), torch.zeros(()), torch.ones(5, 2)
        >>> d2 = hofunc.hessian(f, argnums=(0, 1), layout="compact")(w, b, x)
        >>> d2.block(0, 1).dense()
        tensor([60., 60.])
        >>> d2.contract((w, b), (w, b))
        tensor(240.)
    """

    __slots__ = ("names", "tree")

    __array_ufunc__ = None  # so that a number of numpy times them is left to them

    def __init__(self, tree: Any, names: Names):
        self.tree = tree
        self.names = names

    @property
    def derivatives(self) -> list[Derivative]:
        """All blocks, in the order of the tree."""
        return _taken_apart(self.tree)[0]

    @property
    def order(self) -> int:
        """The number of slots."""
        return len(self.derivatives[0].kinds)

    @property
    def nbytes(self) -> int:
        """Bytes that the tensors of all blocks take, of which those of several blocks count once."""
        return nbytes_of(term for block in self.derivatives for term in block.terms)

    def block(self, *entries: Any, output: Any = ()) -> Any:
        """Return a block, or the blocks of some parts of the arguments.

        Args:
            *entries: For every slot the number of an argument, as in argnums, a key, or a tuple of such, a path: those
                of ``hod(blocks=...)``. It stands for all tensors below it.
            output: Likewise a key or a path in what f returned, whose blocks to return; all of it by default.

        Returns:
            A Derivative; Blocks if an entry, or the output, stands for several tensors.

        Raises:
            ArgumentError: There is no such part, there are not as many entries as slots, or the block was not
                asked for. One whose slots are in another order is found.
        """
        if len(entries) != self.order:
            refuse(f"{_NAME}.block", "entries", f"{len(entries)}", f"{self.order}, one for every slot", _ENTRIES)
        named = [part_of(f"{_NAME}.block", entry, self.names.arguments) for entry in entries]
        path = output if isinstance(output, tuple) else (output,)
        trees = [part_of(f"{_NAME}.block", (0, *path), self.names.of_outputs).tree, *(part.tree for part in named)]
        numbers, specs = zip(*map(tree_flatten, trees), strict=True)
        keyed = self._keyed()
        found = [self._block(keyed, place, slots) for place, *slots in product(*numbers)]
        return as_blocks(nested(found, specs), replace(self.names, outputs=specs[0]))

    def contract(self, *vectors: Any) -> Any:
        """Sum over slots, and over what is differentiated by in them, multiplied by vectors.

        Args:
            *vectors: For every slot a pytree of tensors, of the structure and shapes of what is differentiated by, or
                None to leave the slot open, as are those that no vector is given for.

        Returns:
            Blocks with the open slots; tensors, in the structure of the output, if there are none.

        Raises:
            ArgumentError: A vector is not as described, or a block was not asked for.

        Cost:
            That of `Derivative.contract` for every block.
        """
        if len(vectors) > self.order:
            refuse(f"{_NAME}.contract", "vectors", f"{len(vectors)}", f"at most {self.order}", _ENTRIES)
        filled = {slot: self._leaves(slot, vector) for slot, vector in enumerate(vectors) if vector is not None}

        def product_with(block: Derivative, slots: Sequence[int]) -> Any:
            return block.contract(*(filled[slot][x] if slot in filled else None for slot, x in enumerate(slots)))

        return self._reduced([(slot,) for slot in filled], product_with)

    def diagonal(self) -> "Blocks":
        """Return what is where all slots have the same tensor and equal indices, with one slot; see `Derivative`."""
        keyed, inputs = self._keyed(), range(self.names.slot.num_leaves)
        every = product(range(self.names.outputs.num_leaves), inputs)
        return self._nested([self._block(keyed, output, [x] * self.order).diagonal() for output, x in every], 1)

    def trace(self, *pairs: tuple[int, int]) -> Any:
        """Sum over where two slots have the same tensor and equal indices, for pairs of slots; see `Derivative`."""
        checked = checked_pairs(pairs, [()] * self.order)
        return self._reduced(checked, lambda block, _: block.trace(*checked))

    def dense(self, *, keep_batch: bool = False) -> Any:
        """Return the blocks as dense tensors, nested as they are; see `Derivative.dense`."""
        return self._mapped(lambda block: block.dense(keep_batch=keep_batch))

    def to_sparse(self) -> Any:
        """Return the blocks as tensors of layout torch.sparse_coo, nested as they are; see `Derivative.to_sparse`."""
        return self._mapped(lambda block: block.to_sparse())

    def to_sparse_csr(self) -> torch.Tensor:
        """Return a whole Jacobian, or the whole Hessian of one element, as one matrix of layout torch.sparse_csr.

        Its columns are the elements of all that it is differentiated by, of one tensor after the other in the order of
        the leaves, as `torch.nn.utils.parameters_to_vector` has them. So are its rows at order 2; at order 1 they are
        the elements of all outputs.

        Raises:
            ArgumentError: It is of another order, of order two of several elements, or a block was not asked for.

        Example:
            >>> w, b = torch.ones(2), torch.ones(())
            >>> d2 = hofunc.hessian(lambda w, b: (w**2).sum() * b, argnums=(0, 1), layout="compact")(w, b)
            >>> d2.to_sparse_csr().to_dense()
            tensor([[2., 0., 2.],
                    [0., 2., 2.],
                    [2., 2., 0.]])
        """
        return as_csr(self._matrix())

    def to_scipy(self) -> Any:
        """Return what `to_sparse_csr` does as a scipy.sparse.csr_array, on the CPU and without a history.

        Raises:
            ArgumentError: As there; or scipy is not installed.
        """
        return as_scipy(self._matrix())

    def to(self, *args: Any, **kwargs: Any) -> "Blocks":
        """Return the blocks with another dtype, on another device or both; see `Derivative.to`."""
        return self._mapped(lambda block: block.to(*args, **kwargs))

    def detach(self) -> "Blocks":
        """Return the blocks without their history; see `Derivative.detach`."""
        return self._mapped(lambda block: block.detach())

    def plot(self) -> Any:
        """Draw where the entries are, and how large, in a panel for every block; see `Derivative.plot`."""
        panels = [(name, block._magnitudes()) for name, block in self.named()]
        return plotted(panels, min(self.names.slot.num_leaves, len(panels)))

    def __neg__(self) -> "Blocks":
        return self._mapped(lambda block: -block)

    def __mul__(self, number: Any) -> "Blocks":
        return self._mapped(lambda block: block * number)

    __rmul__ = __mul__

    def __truediv__(self, number: Any) -> "Blocks":
        return self._mapped(lambda block: block / number)

    def __add__(self, other: Any) -> "Blocks":
        others = self._like(other)
        return self._mapped(lambda block: block + next(others))

    def __radd__(self, other: Any) -> "Blocks":
        return self if isinstance(other, int) and other == 0 else self + other  # `sum` starts from zero

    def __sub__(self, other: Any) -> "Blocks":
        others = self._like(other)
        return self._mapped(lambda block: block - next(others))

    def __getitem__(self, index: Any) -> Any:
        return self.tree[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tree)

    def __len__(self) -> int:
        return len(self.tree)

    def __contains__(self, key: Any) -> bool:
        return key in self.tree

    def __getattr__(self, name: str) -> Any:
        if name in Blocks.__slots__ or name.startswith("__") or not hasattr(self.tree, name):
            raise AttributeError(f"'Blocks' object has no attribute {name!r}")
        return getattr(self.tree, name)

    def __repr__(self) -> str:
        lines = [f"  {name}: {block!r}" for name, block in self.named()]
        return "\n".join([f"Blocks(nbytes={self.nbytes})", *lines])

    def _repr_html_(self) -> str:
        from hofunc.structured import shown  # noqa: PLC0415 - few derivatives are shown

        named = self.named()
        title = shown.paragraph(f"{len(named)} blocks, {shown.readable(self.nbytes)}")
        first = named[: shown.ROWS]
        drawn = [shown.cell_of(block.terms, block.shapes) for _, block in first]
        rows = [(name, block.pattern, f"{block.shape}", shown.readable(block.nbytes)) for name, block in first]
        return title + shown.table(
            ("block", "axes", "shape", "memory"), rows, right=(3,), more=len(named) - len(rows), drawn=drawn
        )

    def __reduce__(self) -> tuple[Any, ...]:
        blocks, spec = _taken_apart(self.tree)
        arguments = self.names.arguments
        state = {
            "version": VERSION,
            "blocks": blocks,
            "tree": _numbered(spec),
            "outputs": _numbered(self.names.outputs),
            "slot": _numbered(arguments.spec),
            "are_complex": [*arguments.are_complex],
            "variables": [*arguments.variables],
            "parameters": [*arguments.parameters],
            "specs": [*map(_numbered, arguments.specs)],
            "positions": len(arguments.rest[0]),
        }
        return loaded, (state,)

    def named(self) -> list[tuple[str, Derivative]]:
        """Return all blocks with their names: the output, if there are several, and what is in every slot."""
        inputs = self.names.arguments.names()
        outputs = self.names.of_outputs.names()
        found = []
        for (output, slots), block in self._keyed().items():
            place = [outputs[output].replace("args[0]", "output", 1)] if len(outputs) > 1 else []
            found.append((", ".join([*place, *(inputs[x] for x in slots)]), block))
        return found

    def _keyed(self) -> Keyed:
        """Return the blocks by the numbers of the output and of what is in every slot."""
        blocks = self.derivatives
        count = max(1, len(blocks) // max(1, self.names.outputs.num_leaves))
        return {(place // count, block.kinds): block for place, block in enumerate(blocks)}

    def _block(self, keyed: Keyed, output: int, slots: Sequence[int]) -> Derivative:
        """Return the block of an output by the tensors in every slot, from one with its slots in any order."""
        key = tuple(slots)
        for order in permutations(range(len(key))):
            other = tuple([x for _, x in sorted(zip(order, key, strict=True))])
            if (output, other) in keyed:
                block = keyed[output, other]
                return block if other == key else block.with_slots(order)
        names = self.names.arguments.names()
        got = f"the block by {', '.join(names[x] for x in key)}"
        return refuse(_NAME, "a block", got, "one that was computed", "Ask for it in blocks= or groups=.")

    def _matrix(self) -> Matrix:
        """Return the entries of all blocks, those by one output, or by one tensor in the first slot, side by side."""
        inputs, outputs = range(self.names.slot.num_leaves), range(self.names.outputs.num_leaves)
        if self.order > 1 and len(outputs) > 1:
            refuse(f"{_NAME}: as a sparse matrix", "the output", f"{len(outputs)} tensors", "one element", _EACH)
        keyed, firsts = self._keyed(), product(outputs, *[inputs] * (self.order - 1))
        grid = [[self._block(keyed, output, (*first, x))._matrix() for x in inputs] for output, *first in firsts]
        return put_together(grid)

    def _reduced(self, groups: Sequence[Sequence[int]], apply: Callable[[Derivative, Sequence[int]], Any]) -> Any:
        """Sum what is made of blocks over all tensors in groups of slots, in which the slots of one have the same."""
        inputs, taken = range(self.names.slot.num_leaves), {slot for group in groups for slot in group}
        left = [slot for slot in range(self.order) if slot not in taken]
        keyed, found = self._keyed(), []
        for output, *others in product(range(self.names.outputs.num_leaves), *[inputs] * len(left)):
            parts = []
            for chosen in product(inputs, repeat=len(groups)):
                at = dict(zip(left, others, strict=True))
                at |= {slot: x for group, x in zip(groups, chosen, strict=True) for slot in group}
                slots = [at[slot] for slot in range(self.order)]
                parts.append(apply(self._block(keyed, output, slots), slots))
            found.append(sum(parts[1:], parts[0]))
        return self._nested(found, len(left))

    def _nested(self, found: Sequence[Any], order: int) -> Any:
        """Nest what there is for all outputs, and for all choices of a tensor in each of some slots."""
        return as_blocks(nested(found, [self.names.outputs, *[self.names.slot] * order]), self.names)

    def _mapped(self, function: Callable[[Derivative], Any]) -> Any:
        blocks, spec = _taken_apart(self.tree)
        return as_blocks(tree_unflatten([*map(function, blocks)], spec), self.names)

    def _leaves(self, slot: int, vector: Any) -> list[torch.Tensor]:
        """Return the tensors of a vector."""
        leaves, spec = tree_flatten(vector)
        if spec != self.names.slot:
            refuse(
                f"{_NAME}.contract",
                f"the vector of slot {slot}",
                f"the structure {spec}",
                f"that of what is differentiated by, {self.names.slot}",
                "Pass a tensor for each of these, zeros where it is zero.",
            )
        return leaves

    def _like(self, other: Any) -> Iterator[Derivative]:
        """Return the blocks of another derivative, which has the same."""
        if not isinstance(other, Blocks) or [*other._keyed()] != [*self._keyed()]:
            got = f"blocks {[name for name, _ in other.named()]}" if isinstance(other, Blocks) else type(other).__name__
            refuse(_NAME, "a sum", got, f"blocks {[name for name, _ in self.named()]}", "Add what .dense() gives.")
        return iter(other.derivatives)


_ENTRIES = "Slots are those of the derivative, in order."
_EACH = "Take .block(..., output=...) of each, or .to_sparse()."


def with_names(tree: Any, outputs: TreeSpec, arguments: Arguments) -> Any:
    """Return a tree of derivatives, one at least, as Blocks; one alone as it is; see `names_of`."""
    return tree if isinstance(tree, Derivative) else Blocks(tree, names_of(outputs, arguments))


def as_blocks(tree: Any, names: Names) -> Any:
    """Return a tree of derivatives as Blocks; one alone, and a tree of anything else, as it is."""
    blocks, _ = _taken_apart(tree)
    is_named = not isinstance(tree, Derivative) and blocks and all(isinstance(block, Derivative) for block in blocks)
    return Blocks(tree, names) if is_named else tree


def loaded(state: dict[str, Any]) -> Blocks:
    """Return the blocks that were saved as this, by pickle, copy or torch.save; files name this function.

    Raises:
        ArgumentError: They were saved by a newer version of hofunc.
    """
    check_version(_NAME, state)
    outputs, slot, *specs = (tree_flatten(tree)[1] for tree in (state["outputs"], state["slot"], *state["specs"]))
    rest = ((None,) * state["positions"], dict[str, Any]())
    variables, parameters, are_complex = (tuple(state[key]) for key in ("variables", "parameters", "are_complex"))
    arguments = Arguments([], are_complex, slot, rest, variables, tuple(specs), _NAME, parameters)
    return Blocks(tree_unflatten(state["blocks"], tree_flatten(state["tree"])[1]), Names(outputs, arguments))


def _numbered(spec: TreeSpec) -> Any:
    """Return a tree of a structure whose leaves are numbers."""
    return tree_unflatten([*range(spec.num_leaves)], spec)


def _taken_apart(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Return the derivatives of a tree, and its structure."""
    return flattened(tree, is_leaf=lambda each: isinstance(each, Derivative))


def _flatten(blocks: Blocks) -> tuple[list[Any], tuple[Any, ...]]:
    derivatives, spec = _taken_apart(blocks.tree)
    return derivatives, (spec, blocks.names)


def _unflatten(derivatives: Any, context: tuple[Any, ...]) -> Any:
    spec, names = context
    return as_blocks(tree_unflatten([*derivatives], spec), names)


def collated(batch: Sequence[Blocks], *, collate_fn_map: Any = None) -> Blocks:  # noqa: ARG001 - torch passes it
    """Return the blocks of several derivatives, mapped over these, for torch.utils.data.default_collate.

    Raises:
        ArgumentError: They differ in their blocks, or in the structure of one.
    """
    _, spec = _taken_apart(batch[0].tree)
    columns = zip(*(batch[0]._like(each) for each in batch), strict=True)
    return Blocks(tree_unflatten([stacked(column) for column in columns], spec), batch[0].names)


default_collate_fn_map[Blocks] = collated
torch.serialization.add_safe_globals([loaded])
register_pytree_node(Blocks, _flatten, _unflatten, serialized_type_name="hofunc.Blocks")
