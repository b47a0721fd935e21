"""Tables: vectors of places that a plan needs, which are not made before it is taken.

One of several plans is taken. What tables the others would have is counted, where memory is limited, and never held.
"""

import torch

from hofunc.plan.program import Program, Table


def with_tables(program: Program, known: dict[int, torch.Tensor] | None = None) -> Program:
    """Return a program with the tables that were not made while it was one of several.

    Args:
        program: The program.
        known: Those that are made already, by the identity of what names them, to which others are added.
    """
    known = {} if known is None else known
    tables = {register: one for register, one in program.given.items() if isinstance(one.origin, Table)}
    for table in [one.origin for one in tables.values() if isinstance(one.origin, Table)]:
        if id(table) not in known:
            known[id(table)] = table.made()
    made = {register: one._replace(origin=known[id(one.origin)]) for register, one in tables.items()}
    return program._replace(given={**program.given, **made}) if made else program
