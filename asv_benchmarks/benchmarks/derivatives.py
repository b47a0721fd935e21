"""Time and memory of hofunc and of a peer of each kind, and the size of hofunc's plans, whose history asv keeps.

What is recorded, captured or compiled once is so before it is timed. `make bench-compare` has all peers.
"""

import torch

import hofunc

from .contracted import planned
from .contractions import Contraction
from .peers import peer_of_kind, plan
from .points import heavy, tracked
from .programs import PROGRAMS
from .shown import shown
from .timing import keep_memory

TRACKED = {workload.name: workload for workload in tracked()}
CONTRACTED = {name: point for name, point in TRACKED.items() if isinstance(point, Contraction)}
HEAVY = {workload.name: workload for workload in heavy()}
GROWING = {program.name: program for program in PROGRAMS if program.small}
KINDS = ("hofunc", "hofunc plan", "hofunc plan, compiled", "eager", "captured", "compiled")


class Time:
    """Seconds a call: one thread, float32."""

    params = (tuple(TRACKED), KINDS)
    param_names = ("workload", "way")
    timeout = 300.0

    def setup(self, name: str, kind: str) -> None:
        """Prepare the way and call it once."""
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        keep_memory()
        self.call = peer_of_kind(TRACKED[name], kind).prepare()
        self.call()

    @shown("Time of a call")
    def time_derivative(self, name: str, kind: str) -> None:
        """Time one call."""
        del name, kind
        self.call()


class Memory:
    """Peak memory of a process that prepares a way and calls it: one thread, float32."""

    params = (tuple(HEAVY), ("hofunc", "hofunc plan", "eager"))
    param_names = ("workload", "way")
    timeout = 300.0

    def setup(self, name: str, kind: str) -> None:
        """Find the way."""
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        self.peer = peer_of_kind(HEAVY[name], kind)

    @shown("Peak memory of a process")
    def peakmem_derivative(self, name: str, kind: str) -> None:
        """Prepare and call once."""
        del name, kind
        self.peer.prepare()()


class Plan:
    """What hofunc's plans do, as they count it themselves: the same on every machine, and held by a baseline."""

    params = (tuple(TRACKED),)
    param_names = ("workload",)

    def setup(self, name: str) -> None:
        """Make the plan."""
        with hofunc.options(rates="standard"):
            self.plan = plan(TRACKED[name])

    @shown("Plans: floating-point operations of a call", "flops")
    def track_flops(self, name: str) -> int:
        """Return the floating-point operations of a call."""
        del name
        return self.plan.flops

    @shown("Plans: torch calls of a call", "torch calls")
    def track_steps(self, name: str) -> int:
        """Return the torch calls of a call."""
        del name
        return self.plan.steps

    @shown("Plans: memory held at once", "bytes")
    def track_peak_bytes(self, name: str) -> int:
        """Return the most that a call holds at once of what it allocates."""
        del name
        return self.plan.peak_bytes


class Planning:
    """What it takes to plan the first call of programs that grow, at two sizes: the same on every machine."""

    params = (tuple(GROWING), (1, 2))
    param_names = ("program", "times its small size")

    @shown("Planning: steps of all strategies tried", "steps")
    def track_effort(self, name: str, times: int) -> int:
        """Return the steps of planning."""
        program = GROWING[name]
        with hofunc.options(rates="standard"):
            return program.make(times * program.small).planned().effort


class PlanningOfContractions:
    """What it takes to plan the first call of contractions: the same on every machine."""

    params = (tuple(CONTRACTED),)
    param_names = ("contraction",)

    @shown("Planning of contractions: steps of all strategies tried", "steps")
    def track_effort(self, name: str) -> int:
        """Return the steps of planning."""
        with hofunc.options(rates="standard"):
            return planned(CONTRACTED[name]).effort
