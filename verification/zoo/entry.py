"""What the zoo is made of: entries, and how the files of entries declare them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, NamedTuple

from torch import Tensor

Output = Tensor | tuple[Tensor, ...]
Case = tuple[Callable[..., Output], tuple[Tensor, ...]]  # a function, and the tensors that it is differentiated by


class Refusal(NamedTuple):
    """Why hofunc is expected to refuse an entry.

    Attributes:
        error: The name of the class of the error.
        phrase: What its message says.
        reason: Why, in the words of the table.
    """

    error: str
    phrase: str
    reason: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One function of a library.

    Attributes:
        library: The name by which the library is installed.
        name: What is differentiated, unique in the library.
        make: Makes the function and its arguments, in float64, with a seed and the default dtype set before.
        options: What `hofunc.options` is to be given; the names of classes for the classes.
        refused: Why it is refused, if it is.
        kills_torch: Whether torch.func, asked for its derivatives, ends the process.
        like: Makes a function of the same values which the oracles take in its place, unless they take its own.
        is_convention: Whether its derivative is by intention that of the steps which were taken, as torch has it, so
            that differences have no say.
    """

    library: str
    name: str
    make: Callable[[], Case]
    options: Mapping[str, Any] = field(default_factory=dict)
    refused: Refusal | None = None
    kills_torch: bool = False
    like: Callable[[], Case] | None = None
    is_convention: bool = False

    def resolved(self) -> dict[str, Any]:
        """Return the options with the classes that they name."""
        return {n: v if isinstance(v, str) else [*map(resolve_name, v)] for n, v in self.options.items()}

    @property
    def key(self) -> str:
        """The library and the name, by which an entry is chosen and kept."""
        return f"{self.library}-{self.name}"


class Library:
    """Collects the entries of a library: an instance decorates the functions that make them.

    Example:
        >>> kornia = Library("kornia")
        >>> @kornia
        ... def blur() -> Case: ...
        >>> [entry.key for entry in kornia.entries]
        ['kornia-blur']
    """

    def __init__(self, name: str, *, kills_torch: bool = False):
        self.name, self.kills_torch = name, kills_torch
        self.entries: list[Entry] = []

    def __call__(self, make: Callable[[], Case]) -> Callable[[], Case]:
        """Enter a function that needs no options and is not refused."""
        return self.entry()(make)

    def entry(self, **fields: Any) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
        """Return a decorator that enters a function with other fields of its entry than those that it says itself."""

        def enter(make: Callable[[], Case]) -> Callable[[], Case]:
            self.entries.append(Entry(self.name, make.__name__, make, kills_torch=self.kills_torch, **fields))
            return make

        return enter
