"""What the zoo is made of: entries, and how the files of entries declare them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
        options: What `hofunc.options` is to be given.
        refused: Why it is refused, if it is.
    """

    library: str
    name: str
    make: Callable[[], Case]
    options: Mapping[str, Any] = field(default_factory=dict)
    refused: Refusal | None = None

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

    def __init__(self, name: str):
        self.name = name
        self.entries: list[Entry] = []

    def __call__(self, make: Callable[[], Case]) -> Callable[[], Case]:
        """Enter a function that needs no options and is not refused."""
        return self.entry()(make)

    def entry(
        self, options: Mapping[str, Any] | None = None, refused: Refusal | None = None
    ) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
        """Return a decorator that enters a function with options, or one that is refused."""

        def enter(make: Callable[[], Case]) -> Callable[[], Case]:
            self.entries.append(Entry(self.name, make.__name__, make, options or {}, refused))
            return make

        return enter
