"""Recording: a function as a graph of primitive ops with their values."""
