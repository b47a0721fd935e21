"""Planning: from a graph and the orders wanted to a program."""
