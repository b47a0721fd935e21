"""Sparse Hessians of meshes of triangles, as CSR tensors: hofunc's, and from blocks written by hand."""

from collections.abc import Callable

import torch
from torch import Tensor

import hofunc

from .graphs import elements_whole
from .scattered_by_hand import csr, pieces_of
from .shown import shown
from .timing import keep_memory

TRIANGLES = (1_000, 20_000)
WAYS = ("hofunc", "hofunc plan", "blocks by hand")


def hessian(triangles: int, way: str) -> Callable[[], Tensor]:
    """Return a call that makes the Hessian of the energy of so many triangles as a CSR tensor."""
    workload = elements_whole(triangles)
    (x,) = workload.args
    if way == "blocks by hand":
        pieces = pieces_of(workload)
        return lambda: csr(pieces(x), x)
    derivative = hofunc.hessian(workload.f, layout="compact")
    function = derivative if way == "hofunc" else derivative.plan(x)
    return lambda: function(x).to_sparse_csr()


class Sparse:
    """Time of a call and peak memory of a process: one thread, float32."""

    params = (TRIANGLES, WAYS)
    param_names = ("triangles", "way")
    timeout = 300.0

    def setup(self, triangles: int, way: str) -> None:
        """Prepare the way and call it once."""
        torch.set_num_threads(1)
        torch.set_grad_enabled(False)
        keep_memory()
        self.call = hessian(triangles, way)
        self.call()

    @shown("Sparse Hessian of triangles: time of a call")
    def time_csr(self, triangles: int, way: str) -> None:
        """Time one call."""
        del triangles, way
        self.call()

    @shown("Sparse Hessian of triangles: peak memory of a process")
    def peakmem_csr(self, triangles: int, way: str) -> None:
        """Call once more."""
        del triangles, way
        self.call()

    @shown("Sparse Hessian of triangles: its bytes", "bytes")
    def track_bytes(self, triangles: int, way: str) -> int:
        """Return the bytes of the values and of their places."""
        del triangles, way
        result = self.call()
        return sum(part.nbytes for part in (result.crow_indices(), result.col_indices(), result.values()))
