"""Plans for terms that are drawn at random, run and compared with what the terms stand for."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from hofunc.algebra.operators import DELTA
from hofunc.algebra.term import Factor, Term
from hofunc.graph.ledger import Ledger
from hofunc.graph.node import Ref
from hofunc.plan.builder import Builder
from hofunc.plan.program import Register
from hofunc.rules.lower import lower
from hofunc.run.executor import compiled
from tests.algebra.dense import RandomTerms, materialised


class Workbench:
    """A builder over the tensors of drawn terms.

    Attributes:
        builder: Takes the steps.
    """

    def __init__(self, draw: RandomTerms, device: torch.device):
        self.device = device
        self._draw = draw
        self._values = [torch.tensor(array, device=device) for array in (np.zeros(()), *draw.tensors.values())]
        self._numbers = {source: number for number, source in enumerate(draw.tensors, 1)}
        ledger = Ledger()
        for value in self._values:
            ledger.add_input(value, active=True)
        self.builder = Builder(lower(ledger.graph(self._values[:1]), self._values, 1), torch.float64)

    def named(self, term: Term) -> Term:
        """Return a drawn term with the builder's names for its tensors."""
        return term._replace(factors=tuple(Factor(self.named_source(source), axes) for source, axes in term.factors))

    def named_source(self, source: Any) -> Any:
        """Return the builder's name for a drawn tensor."""
        return DELTA if source is DELTA else Ref(self._numbers[source])

    def run(self, registers: Sequence[Register]) -> list[np.ndarray]:
        """Return the values of some registers."""
        values: list[np.ndarray] = [t.cpu().numpy() for t in compiled(self.builder.program(registers))(self._values)]
        return values

    def meaning(self, terms: Sequence[Term]) -> np.ndarray:
        """Return the sum that contracted terms stand for."""
        registers = [factor.source for term in terms for factor in term.factors]
        arrays = dict(zip(registers, self.run(registers), strict=True))
        return np.sum([materialised(term, arrays) for term in terms], axis=0)

    def expected(self, terms: Sequence[Term]) -> np.ndarray:
        """Return the sum that drawn terms stand for."""
        return np.sum([materialised(term, self._draw.tensors) for term in terms], axis=0)
