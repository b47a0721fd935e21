"""Time and memory of hofunc and of a peer of each kind, whose history asv keeps.

hofunc's plan is made before, as what peers capture or compile is. `make bench-compare` has all peers.
"""

import torch

from .peers import peer_of_kind
from .points import heavy, tracked
from .timing import keep_memory

TRACKED = {workload.name: workload for workload in tracked()}
HEAVY = {workload.name: workload for workload in heavy()}
KINDS = ("hofunc", "eager", "captured", "compiled")


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

    def time_derivative(self, name: str, kind: str) -> None:
        """Time one call."""
        del name, kind
        self.call()


class Memory:
    """Peak memory of a process that prepares a way and calls it: one thread, float32."""

    params = (tuple(HEAVY), KINDS[:2])
    param_names = ("workload", "way")
    timeout = 300.0

    def setup(self, name: str, kind: str) -> None:
        """Find the way."""
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        self.peer = peer_of_kind(HEAVY[name], kind)

    def peakmem_derivative(self, name: str, kind: str) -> None:
        """Prepare and call once."""
        del name, kind
        self.peer.prepare()()
