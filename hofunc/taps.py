"""Taps: values inside a function that it can be differentiated by.

NOTE [taps]: A derivative by a tapped value is one by a change of it, a tensor of zeros that is added to what `tap` is
given and that only what `tap` returns has. So the change is an input of the function like any other: every strategy,
plan and transform takes it as such, and derivatives by several taps, and by arguments too, are those of one function of
independent variables. The zeros are negative ones, which leave every number as it is, 0.0 and -0.0 too.

What a tap is given is known once the function has run, and the changes have to be there before: so the forms of what
was tapped are kept by the forms of arguments. Where they are not known, the function is recorded once to learn them.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, NamedTuple, NoReturn, Self, TypeVar

import torch

from hofunc.errors import ArgumentError, MutationError, UntracedError
from hofunc.graph.identity import innermost
from hofunc.graph.standin import batches_of
from hofunc.graph.tape import innermost_tape
from hofunc.internals import (
    TreeSpec,
    add_batch_dim,
    get_unwrapped,
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    maybe_current_level,
    maybe_get_bdim,
    maybe_get_level,
    tree_leaves,
)
from hofunc.trees import tree_flatten, tree_unflatten

MOST_KEPT = 64  # forms of arguments for which those of taps are known
_MOST_TRIES = 4
Result = TypeVar("Result")
Tree = TypeVar("Tree")


class LeafForm(NamedTuple):
    """What the change of a tensor is like: its shape has the axes that transforms inside the function hide first."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Form(NamedTuple):
    """What is known of a tapped value: its structure, and of what form its tensors are."""

    spec: TreeSpec
    leaves: tuple[LeafForm, ...]

    def change(self) -> Any:
        """Return a change of such a value, of zeros."""
        return tree_unflatten([_zeros(*leaf) for leaf in self.leaves], self.spec)


Forms = Mapping[str, Form]


def tap(name: str, value: Tree) -> Tree:
    """Return a value as it is, and give it a name by which a function that calls this can be differentiated.

    ``hofunc.hod(f, wrt="name")`` differentiates by what this returns where f calls it: as if all that f computes of it
    were computed of an input in its place. Only what is computed of the tensors that are returned counts as such, and
    not of those that were given. See ``wrt`` of `hofunc.hod` for several names, and for arguments beside taps.

    Args:
        name: The name, each once in a call of f: taps in a loop take one with the number of the step in it.
        value: Floating-point or complex tensor, or a pytree of these. Under a vmap inside f derivatives have the axes
            that this hides, of the outermost first, before those of the tensor.

    Returns:
        The value. Outside of a derivative by its name that is what was given.

    Raises:
        ArgumentError: The name is no str, or value is anything else; or the name stands for two values, or for an
            argument of f as well.

    Cost:
        Outside of derivatives by its name less than a microsecond. Else that of adding zeros to the value.

    Example:
        >>> def f(x):
        ...     return hofunc.tap("hidden", x.sin()).square().sum()
        >>> hofunc.hessian(f, wrt="hidden")(torch.zeros(2))
        tensor([[2., 0.],
                [0., 2.]])
    """
    if not isinstance(name, str):
        _refuse("name", type(name).__name__, "a str", 'Call it as hofunc.tap("name", tensor).')
    for leaf in tree_leaves(value):
        _check_leaf(name, leaf)
    if not torch.compiler.is_dynamo_compiling():
        for run in _active.get():
            value = run.passed(name, value)
    return value


class TapsMet(Exception):  # noqa: N818 - it is no error: the function is run again
    """A tapped value is not of the form that its change has."""


class Tapping:
    """One run of a function that is differentiated by what it taps; it is run within this, which ends with it.

    Args:
        transform: The name of the transform.
        changes: The changes by names; None for a run that is to tell the forms of what is tapped.
        wanted: The names of taps.
        parameters: The names of arguments that it is differentiated by, which no tap may have.

    Attributes:
        forms: The forms of those tapped so far.
        values: Those tapped so far, with the axes that transforms inside the function hide first.
    """

    def __init__(
        self, transform: str, changes: Mapping[str, Any] | None, wanted: Sequence[str], parameters: Sequence[str]
    ):
        self.forms: dict[str, Form] = {}
        self.values: dict[str, Any] = {}
        self._transform, self._changes, self._wanted, self._parameters = transform, changes, wanted, parameters
        self._token: Token[tuple[Tapping, ...]]
        self._level = maybe_current_level() or 0
        self._others: dict[str, None] = {}
        self._versions: list[tuple[str, torch.Tensor, int]] = []

    def passed(self, name: str, value: Any) -> Any:
        """Return a value that is tapped, changed if it is one of those wanted.

        Raises:
            ArgumentError: The name stands for another value too.
            UntracedError: A transform inside the function takes a derivative, in which stand-ins are tapped.
            TapsMet: The value has another form than its change.
        """
        if name in self._parameters:
            remedy = "Give the tap another name than the argument."
            _refuse(f"the name {name!r}", "one that f has a parameter of as well", "one thing of that name", remedy)
        if name not in self._wanted:
            self._others[name] = None
            return value
        if name in self.forms:
            remedy = 'Give each a name of its own, as f"{name}{step}" in a loop, and name those in wrt.'
            _refuse(f"the name {name!r}", "two values in one call of f", "one", remedy)
        self._check_level(name)
        leaves, spec = tree_flatten(value)
        batches = [self._batches(leaf) for leaf in leaves]
        form = Form(spec, tuple(map(_form_of, leaves, batches)))
        self.forms[name] = form
        self._watch(name, leaves)
        if self._changes is None:
            self.values[name] = tree_unflatten([self._outside(leaf) for leaf in leaves], spec)
            return value
        given, structure = tree_flatten(self._changes[name])
        if form != Form(structure, tuple(_form_of(each, {}) for each in given)):
            raise TapsMet
        with torch.inference_mode(False), torch.enable_grad():  # f may have turned them off for what it taps
            changed = [leaf + _mapped(each, sizes) for leaf, each, sizes in zip(leaves, given, batches, strict=True)]
        self._watch(name, changed)
        return tree_unflatten(changed, spec)

    def __enter__(self) -> Self:
        self._token = _active.set((*_active.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _active.reset(self._token)
        if kind is None:
            self._check_reached()
            self._check_unwritten()

    def _check_reached(self) -> None:
        missing = [name for name in self._wanted if name not in self.forms]
        if missing:
            met = ", ".join(map(repr, (*self.forms, *self._others))) or "none"
            raise ArgumentError(
                f"{self._transform}: wrt",
                got=", ".join(map(repr, missing)),
                expected=f"parameters of f that are passed by position, or names that f taps, which are here: {met}",
                remedy="Name what f computes by hofunc.tap(name, tensor).",
            )

    def _check_unwritten(self) -> None:
        for name, tensor, version in self._versions:
            if tensor._version != version:
                raise MutationError(
                    f"{self._transform}: f writes to what it taps as {name!r}",
                    got="a write in place to the tensor that was given or returned, or to a view of it",
                    expected="tensors that stay as they are, since under a derivative by the tap these are two",
                    remedy="Write x = hofunc.tap(name, x).clone() before x is written to.",
                )

    def _check_level(self, name: str) -> None:
        tape = innermost_tape()
        if tape is not None and (tape.level or 0) != self._level:
            raise UntracedError(
                f"{self._transform}: f taps {name!r} inside of a derivative that it takes under a torch.func transform",
                got="stand-ins for the tensors that the transform wraps",
                expected="a tap outside of that derivative, or a derivative outside of the transform",
                remedy="Tap what the derivative is taken at, or what it returns.",
            )

    def _batches(self, leaf: torch.Tensor) -> dict[int, int]:
        """Return the levels of vmaps inside the function that map a tensor, the outermost first, and their sizes."""
        return {level: size for level, size in sorted(batches_of([leaf]).items()) if level > self._level}

    def _outside(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return a tensor as it is outside of the transforms inside the function."""
        while is_functorch_wrapped_tensor(leaf) and maybe_get_level(leaf) > self._level:
            inner = get_unwrapped(leaf)
            leaf = inner.movedim(maybe_get_bdim(leaf), 0) if is_batchedtensor(leaf) else inner
        return leaf

    def _watch(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        plain = map(innermost, tensors)
        self._versions += [(name, tensor, tensor._version) for tensor in plain if not tensor.is_inference()]


_active: ContextVar[tuple[Tapping, ...]] = ContextVar("tappings", default=())  # the outermost first
_before: ContextVar[tuple[dict[str, Form], ...]] = ContextVar("forms", default=())  # theirs, see `anew`


@contextmanager
def counted_once() -> Iterator[None]:
    """Let a function that is called within, as often as a transform has to record it, count as called once."""
    token = _before.set(tuple(dict(run.forms) for run in _active.get()))
    try:
        yield
    finally:
        _before.reset(token)


def anew() -> None:
    """Forget what was tapped since `counted_once`: a function is recorded again."""
    for run, forms in zip(_active.get(), _before.get(), strict=False):
        run.forms = dict(forms)


def is_tapping() -> bool:
    """Tell whether a function is running that is differentiated by what it taps."""
    return bool(_active.get())


class Known:
    """The forms of what a function taps, by the forms of what it is called with."""

    def __init__(self) -> None:
        self._forms: OrderedDict[Any, Forms] = OrderedDict()

    def of(self, args: tuple, kwargs: dict, learn: Callable[[], Forms]) -> Forms:
        """Return those for some arguments, which are learnt if they are not known."""
        key = _key(args, kwargs)
        found = self._forms.get(key)
        if found is None:
            found = self._forms[key] = learn()
            if len(self._forms) > MOST_KEPT:
                self._forms.popitem(last=False)
        return found

    def settled(self, transform: str, args: tuple, kwargs: dict, call: Callable[[], Result]) -> Result:
        """Return what a call comes to, which is made again where other forms were met than were known.

        Raises:
            ArgumentError: They are others at every call.
        """
        for _ in range(_MOST_TRIES):
            try:
                return call()
            except TapsMet:
                self._forms.pop(_key(args, kwargs), None)
        raise ArgumentError(
            f"{transform}: wrt",
            got="taps of other shapes or dtypes at every call of f with the same arguments",
            expected="the same",
            remedy="Draw what decides on them outside of f, and pass it.",
        )


def _key(args: tuple, kwargs: dict) -> Any:
    leaves, spec = tree_flatten((args, kwargs))
    forms = [(leaf.shape, leaf.dtype, leaf.device) for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return spec, tuple(forms)


def _form_of(leaf: torch.Tensor, batches: Mapping[int, int]) -> LeafForm:
    return LeafForm((*batches.values(), *leaf.shape), leaf.dtype, leaf.device)


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor of negative zeros, of one number in memory."""
    zero = complex(-0.0, -0.0) if dtype.is_complex else -0.0
    return torch.full((), zero, dtype=dtype, device=device).expand(tuple(shape))


def _mapped(change: torch.Tensor, batches: Mapping[int, int]) -> torch.Tensor:
    """Return a change as the vmaps inside the function map it, along its first axes."""
    for level in batches:
        change = add_batch_dim(change, 0, level)
    return change


def _check_leaf(name: str, leaf: Any) -> None:
    if not isinstance(leaf, torch.Tensor):
        _refuse(f"value of {name!r}", type(leaf).__name__, "a tensor, or a pytree of tensors", "Tap what f computes.")
    if not leaf.is_floating_point() and not leaf.is_complex():
        dtype = "a floating-point or complex dtype"
        _refuse(f"value of {name!r}", f"dtype {leaf.dtype}", dtype, "Tap what is computed of it in floating point.")


def _refuse(what: str, got: str, expected: str, remedy: str) -> NoReturn:
    raise ArgumentError(f"hofunc.tap: {what}", got=got, expected=expected, remedy=remedy)
