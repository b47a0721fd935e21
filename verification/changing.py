"""A function that depends on all kinds of things beside its arguments, and the changes that can be made to them.

What a plan must notice is not in its arguments: captured tensors, modules and objects, numbers in closures and globals,
and the state of torch. Here is one of each, as pieces of a function, and for every kind of change what it may be called
in an error.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from verification.vectors import mixture

SHAPE = (2, 3)
FACTOR = 0.5  # a global number that a piece reads

Piece = Callable[[Tensor], Tensor]


class Holder:
    """An object of no kind that torch knows, with a number and a tensor."""

    def __init__(self) -> None:
        self.factor = 1.5
        self.weight = mixture(1, 3)[0]


@dataclass
class World:
    """The state of torch while something is called."""

    autocast: torch.dtype | None = None
    default_dtype: torch.dtype = torch.float32
    deterministic: bool = False
    grad: bool = True
    inference: bool = False
    seed: int = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Let it hold for a while."""
        before = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(self.grad))
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.autocast("cpu", self.autocast, enabled=self.autocast is not None))
            try:
                torch.set_default_dtype(self.default_dtype)
                torch.use_deterministic_algorithms(self.deterministic)
                torch.manual_seed(self.seed)
                yield
            finally:
                torch.set_default_dtype(before[0])
                torch.use_deterministic_algorithms(before[1])


def _of_closure() -> tuple[Piece, Callable[[], None]]:
    """Return a function of a number in its closure, and what changes that."""
    number = 1.25

    def piece(x: Tensor) -> Tensor:
        return x.cos() * number

    def change() -> None:
        nonlocal number
        number += 1

    return piece, change


@dataclass
class Setting:
    """All that the function depends on, its arguments among it.

    Attributes:
        x: What it is differentiated by.
        holder: An object that is passed.
        shift: A tensor that is passed by keyword.
        power: A number that is passed by keyword.
        turned: Whether keywords are passed in the other order.
        weight: A captured tensor.
        single: A captured matrix in single precision, which autocast converts.
        net: A captured network, with a layer that draws random numbers in training.
        world: The state of torch.
    """

    x: Tensor = field(default_factory=lambda: mixture(*SHAPE))
    holder: Holder = field(default_factory=Holder)
    shift: Tensor = field(default_factory=lambda: mixture(1, 3)[0] + 2)
    power: int = 2
    turned: bool = False
    weight: Tensor = field(default_factory=lambda: mixture(1, 3)[0] + 0.3)
    single: Tensor = field(default_factory=lambda: mixture(3, 3).float())
    world: World = field(default_factory=World)
    net: nn.Sequential = field(init=False)

    def __post_init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.LeakyReLU(0.2), nn.Dropout(0.3)).double().eval()
        for number, parameter in enumerate(self.net.parameters(), 1):
            parameter.data = mixture(number, parameter.numel())[-1].reshape(parameter.shape) + 0.2
        self.of_closure, self.change_closure = _of_closure()

    def function(self, pieces: Iterable[str]) -> Callable[..., Tensor]:
        """Return a function of the arguments that adds some pieces up, each of a kind of its own."""
        parts = [PIECES[name] for name in sorted(pieces)]

        def f(x: Tensor, holder: Holder, *, shift: Tensor, power: int) -> Tensor:
            total = (x * shift).sin() ** power
            for part in parts:
                total = total + part(self, x, holder, shift)
            return total

        return f

    def called(self, g: Callable[..., Any]) -> Any:
        """Call the function, or what has been made of it, as things are now."""
        keywords = {"shift": self.shift, "power": self.power}
        if self.turned:
            keywords = dict(reversed(keywords.items()))
        with self.world.entered():
            return g(self.x, self.holder, **keywords)


# The pieces: what a function may depend on.


def _captured(setting: Setting, x: Tensor, *_: Any) -> Tensor:
    weight = setting.weight
    return (x.to(weight.dtype) * weight).sin().to(x.dtype) / weight.numel()


def _through_net(setting: Setting, x: Tensor, *_: Any) -> Tensor:
    return setting.net(x.to(next(setting.net.parameters()).dtype)).to(x.dtype) * x


def _of_holder(setting: Setting, x: Tensor, holder: Holder, shift: Tensor) -> Tensor:  # noqa: ARG001 - as all pieces
    return (x * holder.weight).exp() * holder.factor


def _asks_history(setting: Setting, x: Tensor, *_: Any) -> Tensor:
    return x.sin() * 2 if setting.weight.requires_grad else x.cos()


def _asks_deterministic(setting: Setting, x: Tensor, *_: Any) -> Tensor:  # noqa: ARG001 - as all pieces
    return x.sin() * 2 if torch.are_deterministic_algorithms_enabled() else x.cos()


def _lists(setting: Setting, x: Tensor, *_: Any) -> Tensor:
    return x * x * sum(setting.weight.tolist())


def _arrays(setting: Setting, x: Tensor, *_: Any) -> Tensor:
    return x.sin() * torch.from_numpy(setting.weight.detach().double().numpy() + 0.1)


def _makes_tensors(setting: Setting, x: Tensor, holder: Holder, shift: Tensor) -> Tensor:  # noqa: ARG001
    return x.sin() * torch.tensor([shift[0], shift[1], 1.0], dtype=x.dtype)


def _reads_item(setting: Setting, x: Tensor, holder: Holder, shift: Tensor) -> Tensor:  # noqa: ARG001
    return x.cos() * shift.sum().item()


PIECES: dict[str, Callable[..., Tensor]] = {
    "captured": _captured,
    "net": _through_net,
    "holder": _of_holder,
    "history": _asks_history,
    "deterministic": _asks_deterministic,
    "list": _lists,
    "array": _arrays,
    "made of numbers": _makes_tensors,
    "item": _reads_item,
    "closure": lambda setting, x, *_: setting.of_closure(x),
    "global": lambda _, x, *__: x.sin() * FACTOR,
    "single": lambda setting, x, *_: (x.float() @ setting.single).to(x.dtype) * x,
    "default dtype": lambda _, x, *__: x.sin() * torch.full((3,), 1 / 3),
    "drawn": lambda _, x, *__: x.sin() * torch.rand_like(x.contiguous()),  # in an order that strides do not change
    "seeded": lambda _, x, *__: x.sin() * torch.rand_like(x, generator=torch.manual_seed(3)),
}

READING = {"list", "array", "made of numbers", "item"}  # those of which values are part of a plan


# The changes.


class Change(NamedTuple):
    """A change of what a function depends on.

    Attributes:
        name: What is changed.
        pieces: Those that depend on it.
        apply: Makes it.
        words: An error that says what has changed has one of them.
        is_value: Whether only values of tensors change, or what no result depends on: no plan refuses that, unless it
            has read them.
    """

    name: str
    pieces: tuple[str, ...]
    apply: Callable[[Setting], Any]
    words: tuple[str, ...]
    is_value: bool = False


@torch.no_grad()
def _add(tensor: Tensor) -> None:
    tensor += 0.5


def _change_shape(setting: Setting) -> None:
    setting.weight.data = setting.weight.data[:1] if setting.weight.numel() > 1 else setting.weight.data.repeat(3)


def _change_dtype(setting: Setting) -> None:
    is_double = setting.weight.dtype == torch.float64
    setting.weight.data = setting.weight.data.to(torch.float32 if is_double else torch.float64)


def _change_strides(setting: Setting) -> None:
    setting.x = setting.x.mT.contiguous().mT if setting.x.is_contiguous() else setting.x.contiguous()


def _change_parameter(setting: Setting) -> None:
    setting.net[0].weight = nn.Parameter(next(setting.net.parameters()).detach() * 0.5)


def _change_precision(setting: Setting) -> None:
    is_double = next(setting.net.parameters()).dtype == torch.float64
    setting.net.to(torch.float32 if is_double else torch.float64)


def _set(place: Callable[[Setting], Any], name: str, change: Callable[[Any], Any]) -> Callable[[Setting], None]:
    """Return what changes an attribute of a part of a setting."""

    def apply(setting: Setting) -> None:
        owner = place(setting)
        setattr(owner, name, change(getattr(owner, name)))

    return apply


def _of_world(name: str, change: Callable[[Any], Any]) -> Callable[[Setting], None]:
    return _set(lambda setting: setting.world, name, change)


def _of_layer(number: int, name: str, change: Callable[[Any], Any]) -> Callable[[Setting], None]:
    return _set(lambda setting: setting.net[number], name, change)


def _switched(dtype: torch.dtype) -> Callable[[torch.dtype | None], torch.dtype | None]:
    """Return what switches to a dtype, or off."""
    return lambda before: None if before is dtype else dtype


def _turned(value: bool) -> bool:
    return not value


_NET = ("net",)
_READ = ("values", "read")

CHANGES = (
    Change("values of a captured tensor", ("captured",), lambda s: _add(s.weight), _READ, is_value=True),
    Change("values that are listed", ("list",), lambda s: _add(s.weight), _READ, is_value=True),
    Change("values that an array has", ("array",), lambda s: _add(s.weight), _READ, is_value=True),
    Change("values of an argument", ("captured",), lambda s: _add(s.shift), _READ, is_value=True),
    Change("numbers that a tensor is made of", ("made of numbers",), lambda s: _add(s.shift), _READ, is_value=True),
    Change("a number that is read", ("item",), lambda s: _add(s.shift), _READ, is_value=True),
    Change("values of what is differentiated by", (), lambda s: _add(s.x), _READ, is_value=True),
    Change("values of parameters", _NET, lambda s: [_add(p) for p in s.net.parameters()], _READ, is_value=True),
    Change("shape of a captured tensor", ("captured",), _change_shape, ("shape",)),
    Change("dtype of a captured tensor", ("captured",), _change_dtype, ("dtype",)),
    Change(
        "whether a captured tensor requires gradients",
        ("history",),
        lambda s: s.weight.requires_grad_(not s.weight.requires_grad),
        ("requires_grad",),
    ),
    Change("gradients of what is captured", ("captured",), lambda s: s.weight.requires_grad_(), ("requires_grad",)),
    Change(
        "another captured tensor",
        ("captured",),
        _set(lambda setting: setting, "weight", lambda w: w.detach() * 0.5),
        ("weight",),
    ),
    Change("another parameter", _NET, _change_parameter, ("weight",)),
    Change("precision of a module", _NET, _change_precision, ("dtype", "weight")),
    Change("training", _NET, lambda s: s.net.train(not s.net.training), ("training",)),
    Change("probability of dropout", _NET, _of_layer(3, "p", lambda p: 0.9 - p), (" p ",)),
    Change("slope of an activation", _NET, _of_layer(2, "negative_slope", lambda p: p + 0.1), ("negative_slope",)),
    Change("eps of a norm", _NET, _of_layer(1, "eps", lambda p: p + 0.1), ("eps",)),
    Change("another layer", _NET, lambda s: s.net.__setitem__(2, nn.LeakyReLU(0.7)), ("2", "LeakyReLU")),
    Change(
        "number of an argument", ("holder",), _set(lambda s: s.holder, "factor", lambda p: p + 1), ("factor", "holder")
    ),
    Change("values in an argument", ("holder",), lambda s: _add(s.holder.weight), _READ, is_value=True),
    Change("tensor of an argument", ("holder",), _set(lambda s: s.holder, "weight", lambda w: w * 0.5), ("weight",)),
    Change("another argument", ("holder",), _set(lambda s: s, "holder", lambda _: Holder()), ("args[1]",)),
    Change("a number that is passed", (), _set(lambda s: s, "power", lambda p: 5 - p), ("power",)),
    Change("a number in a closure", ("closure",), lambda s: s.change_closure(), ("number",)),
    Change("a global number", ("global",), lambda _: globals().update(FACTOR=FACTOR + 1), ("FACTOR",)),
    Change("autocast", ("single",), _of_world("autocast", _switched(torch.bfloat16)), ("autocast",)),
    Change("dtype of autocast", ("single",), _of_world("autocast", _switched(torch.float16)), ("autocast",)),
    Change(
        "default dtype",
        ("default dtype",),
        _of_world("default_dtype", lambda d: torch.float32 if d is torch.float64 else torch.float64),
        ("default dtype",),
    ),
    Change("deterministic mode", ("deterministic",), _of_world("deterministic", _turned), ("deterministic",)),
    Change("grad mode", ("captured", "net"), _of_world("grad", _turned), (), is_value=True),
    Change("inference mode", ("captured", "holder"), _of_world("inference", _turned), (), is_value=True),
    Change("seed", ("drawn",), _of_world("seed", lambda seed: seed + 1), (), is_value=True),
    Change("seed of what sets its own", ("seeded",), _of_world("seed", lambda seed: seed + 1), (), is_value=True),
    Change("strides of an argument", ("captured",), _change_strides, ("strides",), is_value=True),
    Change("order of keywords", (), _set(lambda s: s, "turned", _turned), ("arguments",)),
)


def reset() -> None:
    """Make the global number what it was."""
    globals().update(FACTOR=0.5)


def is_harmless(changes: Iterable[Change], pieces: Iterable[str]) -> bool:
    """Tell whether no plan of some pieces has a reason to refuse after some changes."""
    return all(change.is_value for change in changes) and READING.isdisjoint(pieces)


def is_said(error: Exception, changes: Iterable[Change]) -> bool:
    """Tell whether an error names one of some changes, or values that were read."""
    words = [*_READ, *(word for change in changes for word in change.words)]
    return any(word in str(error) for word in words)
