"""The way that a function took, op by op, when it was last recorded: what to expect of a function that writes in place.

What a write does to a graph takes long to find out, and follows from the calls of ops: which these are, which tensors
they take, and how these lie in memory. So where all calls are those of the recording before, its graph is known as it
stands, and of the values only those have to be kept that a plan takes, before they are written over.
"""

from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import nullcontext
from typing import Any, NamedTuple
from weakref import ref

import torch

from hofunc.graph.effects import effects
from hofunc.graph.identity import reading_of, storage_key
from hofunc.graph.layout import Layout, layout_of
from hofunc.graph.node import CONSTANT, Graph
from hofunc.graph.quick import QUICK
from hofunc.internals import OpOverload, count_dispatch_modes, disable_current_modes, kernel_of

ATOMS = frozenset((int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))


_RESHAPES = (
    torch.ops.aten.squeeze_.default,
    torch.ops.aten.squeeze_.dim,
    torch.ops.aten.squeeze_.dims,
    torch.ops.aten.unsqueeze_.default,
    torch.ops.aten.transpose_.default,
    torch.ops.aten.t_.default,
)


class Unheld:
    """A new tensor that nobody is to hold as yet, so that its maker is given just this one.

    Args:
        tensor: The tensor.
    """

    __slots__ = ("_alias", "known")

    def __init__(self, tensor: torch.Tensor):
        self.known, self._alias = ref(tensor), _out_of_sight(tensor)

    def tensor(self) -> torch.Tensor:
        """Return the tensor, or one in the same memory if it is gone or was given other data."""
        known = self.known()
        return self._alias if known is None or storage_key(known) != storage_key(self._alias) else known


def _out_of_sight(tensor: torch.Tensor) -> torch.Tensor:
    """Return an alias of a tensor, of which no mode takes note that would hold the tensor for that."""
    with disable_current_modes() if count_dispatch_modes() else nullcontext():
        return tensor.detach()


def reshapes(op: Any) -> bool:
    """Tell whether an op changes the shape of a tensor in place."""
    return op in _RESHAPES


def unheld(out: Any) -> Any:
    """Return what to keep of what an op made, without holding it if it is a plain tensor."""
    return Unheld(out) if type(out) is torch.Tensor else out


def held(out: Any) -> Any:
    """Return what an op made, of which that was kept."""
    return out.tensor() if type(out) is Unheld else out


class Form(NamedTuple):
    """What a tensor is, but for its values and its place in memory."""

    layout: Layout
    reading: tuple[torch.dtype, bool, bool]
    device: torch.device
    is_followed: bool

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Tell whether a tensor has this form."""
        return tensor.requires_grad is self.is_followed and self.is_made(tensor)

    def is_made(self, tensor: torch.Tensor) -> bool:
        """Tell whether what an op returned has this form; autograd follows it only after the call, if at all."""
        (size, stride, offset), (dtype, is_conj, is_neg), device, _ = self
        return (
            tensor.shape == size
            and tensor.dtype is dtype
            and tensor.stride() == stride
            and tensor.storage_offset() == offset
            and tensor.device == device
            and tensor.is_conj() is is_conj
            and tensor.is_neg() is is_neg
        )


def form_of(tensor: torch.Tensor) -> Form:
    """Return the form of a tensor."""
    return Form(layout_of(tensor), reading_of(tensor), tensor.device, tensor.requires_grad)


class Seen(NamedTuple):
    """Stands for the tensor that came along as the so manieth."""

    number: int


class New(NamedTuple):
    """Stands for a tensor that comes along for the first time: from outside where it is taken, or made by an op."""

    number: int
    form: Form


class Other(NamedTuple):
    """Stands for what is no tensor, nor holds one."""

    kind: type
    value: Any


class Several(NamedTuple):
    """Stands for a list or a tuple, or, of calls of functions, another sequence or a slice, with its parts.

    Attributes:
        kind: Its type, or what else makes it of a list of these.
        items: What stands for them.
    """

    kind: Callable[[list], Any]
    items: tuple


class Span(NamedTuple):
    """During which a tensor holds the value of a node.

    Attributes:
        tensor: The number of the tensor.
        first: After how many calls.
        last: And up to how many; the next call writes over it, unless it is the end.
        is_value: Whether autograd knows the tensor as it knows the value, and not as an alias of that.
    """

    tensor: int
    first: int
    last: int
    is_value: bool


class Step:
    """A call of an op.

    Attributes:
        op: The op.
        runs: What computes it.
        arity: The number of its positional arguments.
        known: Which of these are tensors that came along before the call, and their numbers.
        others: Which are no tensors, what they are, and their types.
        given: Which are tensors that come along with the call, from outside.
        rest: What stands for each of the others, by place or name.
        names: The names of its keyword arguments.
        has_grad: Whether gradients are on where it is made.
        returned: The number of the tensor that it returns, if that came along before, as what is written to; else None.
        is_new: Whether it returns one new tensor, which may be held.
        shape: The shape of that.
        stride: Its strides.
        dtype: Its dtype.
        result: What stands for what it returns.
        makes: Whether that is not to be held, see `Effects`.
        saved: The nodes whose values are kept, with the tensors that hold them until then.
        reshapes: The number of the tensor of which it changes the shape in place, which then comes along anew; or None.
    """

    __slots__ = (
        "arity",
        "dtype",
        "given",
        "has_grad",
        "is_new",
        "known",
        "makes",
        "names",
        "op",
        "others",
        "reshapes",
        "rest",
        "result",
        "returned",
        "runs",
        "saved",
        "shape",
        "stride",
    )

    def __init__(self, op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any], result: Any, *, has_grad: bool):
        self.op, self.runs, self.has_grad = op, QUICK.get(op) or kernel_of(op), has_grad
        self.arity, self.names = len(args), kwargs.keys()
        places, new = [*enumerate(args)], {*_new(tuple(args))}
        self.known = tuple((p, e.number) for p, e in places if type(e) is Seen and e.number not in new)
        self.others = tuple((place, each.value, each.kind) for place, each in places if _is_plain(each))
        listed = next((place for place, each in places if type(each) is Several), self.arity)  # numbered in their turn
        self.given = tuple((place, each) for place, each in places[:listed] if type(each) is New)
        told = {place for place, *_ in (*self.known, *self.others, *self.given)}
        self.rest = (*((p, e) for p, e in places if p not in told), *kwargs.items())
        self.reshapes: int | None = args[0].number if reshapes(op) else None
        self.result, self.makes = result, effects(op).makes
        self.returned: int | None = result.number if type(result) is Seen else None
        self.is_new = type(result) is New and not self.makes and self.reshapes is None
        self.shape: tuple[int, ...] | None = result.form.layout.size if self.is_new else None
        self.stride: tuple[int, ...] | None = result.form.layout.stride if self.is_new else None
        self.dtype: torch.dtype | None = result.form.reading[0] if self.is_new else None
        self.saved: tuple[tuple[int, int], ...] = ()


def _new(each: Any) -> Iterator[int]:
    """Yield the numbers of the tensors that come along for the first time in what stands for arguments."""
    if type(each) is New:
        yield each.number
    elif type(each) in {tuple, Several}:
        for item in each if type(each) is tuple else each.items:
            yield from _new(item)


def _is_plain(each: Any) -> bool:
    """Tell whether something stands for what is no tensor and is told by ``==``, unlike 0.0 from -0.0."""
    return type(each) is Other and (each.kind in ATOMS or (type(each.value) is float and each.value != 0))


class Route:
    """The calls of a recording, and where the values of its graph were to be found.

    NOTE [routes and histories]: What autograd knows of a tensor follows from the calls, like the graph, and from which
    tensors it follows: so these are compared as well. A value has its history if it is held by the very tensor that
    the recording took for it, and not hidden; others are computed again, as the graph says, from those that have.

    Args:
        graph: The graph.
        inputs: The forms of its inputs.
        steps: The calls.
        outputs: The numbers of the tensors that were returned.
        spans: Where the value of every node is held.
        written: The numbers of the tensors whose memory is written to.
        given: Those of the tensors that the function captured.
        followed: Those of the tensors that autograd follows, in the end.
        hidden: The nodes of which autograd may know another history than the graph.

    Attributes:
        ends: The nodes whose values are held in the end, each with a tensor that does.
        leads_outside: Whether what is returned may have derivatives by more than the function itself has made.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Form],
        steps: Sequence[Step],
        outputs: Sequence[int],
        spans: Sequence[Sequence[Span]],
        written: Sequence[int],
        given: Set[int],
        followed: Sequence[int],
        hidden: Set[int],
    ):
        self.graph, self.inputs, self.steps, self.outputs = graph, [*inputs], steps, outputs
        self.spans, self.written = spans, sorted(written)
        ends = ([span.tensor for span in each if span.last == len(steps)] for each in spans)
        self.ends = [(number, tensors[0]) for number, tensors in enumerate(ends) if tensors]
        self.given, self.followed, self.hidden = given, [*followed], hidden
        self.leads_outside = False
        for node in graph.nodes:
            if node.op is CONSTANT:  # which nothing computes
                self.keep(node.number)

    def starts_from(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Tell whether inputs are such as it started from."""
        return len(inputs) == len(self.inputs) and all(map(Form.is_of, self.inputs, inputs))

    def keep(self, number: int) -> None:
        """Have the value of a node kept from now on, where it is held at all."""
        span = max(self.spans[number], key=lambda span: (span.last, span.is_value), default=None)
        if span is not None and span.last < len(self.steps):
            step = self.steps[span.last]
            step.saved = (*dict.fromkeys((*step.saved, (number, span.tensor))),)
