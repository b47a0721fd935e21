"""What checks hofunc from outside: oracles that share no code with it."""
