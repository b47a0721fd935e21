"""Recordings without histories, where backward passes are planned; see NOTE [bare] in `hofunc.graph.recording`."""

from collections.abc import Sequence

from torch import Tensor

from hofunc.graph.identity import is_dense
from hofunc.graph.lines import is_detecting
from hofunc.graph.recording import Recording
from hofunc.graph.trail import NOTHING
from hofunc.graph.values import by_number
from hofunc.graph.world import without_autocast
from hofunc.run.cache import Planned


def of_bare(recording: Recording, found: Planned) -> list[Tensor] | None:
    """Return the results of a plan for a bare recording; None if they take histories, also of what f returns beside."""
    has_aux = len(recording.graph.outputs) > len(found.plan.lowered.graph.outputs)
    if has_aux or found.spots or found.learning is None or is_detecting():
        return None
    return without_autocast(found.learning.results_bare, by_number(recording.values))


def note(recording: Recording, found: Planned, inputs: Sequence[Tensor]) -> None:
    """Note whether the next recording may be bare, given one on the values of which a plan was run."""
    trail, learning = recording.trail, found.learning
    if trail is NOTHING or trail.is_bare is None:
        return
    has_aux = len(recording.graph.outputs) > len(found.plan.lowered.graph.outputs)  # of which histories are wanted
    is_learned = learning is not None and learning.is_on and not (found.spots or has_aux or recording.wrappers)
    is_learned = is_learned and any(tensor.requires_grad for tensor in inputs)  # as those of other trails may not be
    trail.is_bare = is_learned and trail.are_known and not trail.hides_history and all(map(is_dense, inputs))
