"""Which mutants count: those that change what the code does, as far as its text can tell.

What does not count is taken out of the syntax trees of both texts; a mutant that then equals the original is none.
"""

import ast

# With what a cache of a pure function has or lacks, results are the same.
CACHES = {"lru_cache", "cache"}

# Keywords that change no result of code that is right: zip's check of its lengths, and how objects are stored.
CHECKS = {("zip", "strict"), ("dataclass", "slots")}


class _Strip(ast.NodeTransformer):
    """Takes out what no test should look at, each for its own reason."""

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        """Errors keep their type: the wording of a message is for people, and others' tests look for its parts."""
        exception = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return ast.Raise(exc=exception, cause=None)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        """Guards of InternalError hold unless hofunc is wrong already, so that no input reaches them."""
        guarded = isinstance(node.body[0], ast.Raise) and "InternalError" in ast.dump(node.body[0])
        return None if guarded and not node.orelse else self.generic_visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Annotations are checked by mypy, docstrings by doctest, and caches of pure functions change no result."""
        node.returns = None
        node.decorator_list = [d for d in node.decorator_list if _name(d) not in CACHES]
        _without_docstring(node)
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Docstrings are checked by doctest."""
        _without_docstring(node)
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        """Annotations are checked by mypy."""
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Annotations are checked by mypy."""
        node.annotation = ast.Constant(value=None)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Some keywords only check or store."""
        node.keywords = [keyword for keyword in node.keywords if (_name(node), keyword.arg) not in CHECKS]
        return self.generic_visit(node)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _without_docstring(node: ast.FunctionDef | ast.ClassDef) -> None:
    if ast.get_docstring(node, clean=False) is not None:
        node.body = node.body[1:]


def _stripped(source: str) -> str:
    return ast.dump(_Strip().visit(ast.parse(source)))


def differs(before: str, after: str) -> bool:
    """Tell whether the mutated text is Python, and does something else than the original."""
    try:
        return _stripped(after) != _stripped(before)
    except SyntaxError:
        return False
