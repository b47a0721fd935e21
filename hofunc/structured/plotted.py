"""Where the entries of a structured derivative are, and how large: pictures by matplotlib, which is an extra."""

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from hofunc.errors import ArgumentError
from hofunc.given import refuse, shown
from hofunc.scatter import flattened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 512  # pixels along an axis
_INCHES = 3.2  # of a panel


def magnitudes(entries: torch.Tensor, output: int, slots: Sequence[int], most: int = MOST) -> torch.Tensor:
    """Return the largest magnitudes of entries by the first slot and the last one, by the output at order 1.

    Args:
        entries: A coalesced sparse tensor.
        output: How many axes the output has.
        slots: How many axes every slot has.
        most: How many rows and columns there may be; of more elements several share one.

    Returns:
        Matrix, nan where there is no entry other than zero.
    """
    first = slice(output, output + slots[0]) if len(slots) > 1 else slice(0, output)
    last = slice(entries.dim() - slots[-1], None)
    shape, sizes, places = tuple(entries.shape), [], []
    for group in (first, last):
        size = prod(shape[group])
        sizes.append(min(size, most))
        places.append(flattened(entries.indices()[group], shape[group]) * sizes[-1] // max(1, size))
    found = entries.values().abs().double()
    zeros = torch.zeros(prod(sizes), dtype=torch.double, device=found.device)
    largest = zeros.scatter_reduce(0, places[0] * sizes[1] + places[1], found, "amax").reshape(sizes)
    return torch.where(largest == 0, torch.nan, largest)


def plotted(panels: Sequence[tuple[str, torch.Tensor]], columns: int, ax: "Axes | None" = None) -> "Figure":
    """Draw matrices of magnitudes, one panel for each.

    Args:
        panels: Their titles, and the matrices.
        columns: How many panels are beside each other.
        ax: Where to draw a single one; by default in a new figure.

    Raises:
        ArgumentError: There is no matplotlib, or nothing to draw on.
    """
    if ax is not None and not hasattr(ax, "get_figure"):
        refuse("hofunc.Derivative.plot", "ax", shown(ax), "axes of matplotlib, or None", "Leave it out for a figure.")
    figure_class = _figure_class()
    if ax is None:
        rows = -(-len(panels) // columns)
        figure = figure_class(figsize=(_INCHES * columns, _INCHES * rows), layout="constrained")
        axes: list[Any] = [*figure.subplots(rows, columns, squeeze=False).flat]
    else:
        figure, axes = ax.get_figure(root=True), [ax]
    for place, (title, matrix) in zip(axes, panels, strict=False):
        image = place.imshow(matrix.detach().cpu().log10().numpy(), aspect="auto", interpolation="nearest")
        place.set_title(title, fontsize="small")
        figure.colorbar(image, ax=place, label="log10 of the magnitude")
    for place in axes[len(panels) :]:
        place.set_axis_off()
    return figure


def _figure_class() -> Any:
    """Return matplotlib's class of figures.

    Raises:
        ArgumentError: There is no matplotlib.
    """
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ArgumentError(
            "hofunc.Derivative.plot",
            got="no matplotlib",
            expected="matplotlib, which hofunc does not need otherwise",
            remedy="pip install hofunc[plot]",
        ) from error
    return Figure
