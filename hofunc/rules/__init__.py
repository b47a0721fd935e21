"""The rules of all known ops."""
from hofunc.rules import elementwise, linear, multilinear, reshape
