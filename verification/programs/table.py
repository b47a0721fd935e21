"""The table of all ops that programs are made of."""

from verification.programs.elementwise import ELEMENTWISE
from verification.programs.layers import LAYERS
from verification.programs.local import LOCAL
from verification.programs.matrices import MATRICES
from verification.programs.order import ORDER
from verification.programs.products import PRODUCTS
from verification.programs.reductions import REDUCTIONS
from verification.programs.shapes import SHAPES
from verification.programs.written import WRITTEN

# The first fits everywhere and is what programs shrink to.
ROWS = (*ELEMENTWISE, *PRODUCTS, *REDUCTIONS, *SHAPES, *LAYERS, *WRITTEN, *LOCAL, *ORDER, *MATRICES)
