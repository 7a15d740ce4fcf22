"""What a source says to Python, by which a mutant is a change or none."""

from __future__ import annotations

import ast


class _WithoutWords(ast.NodeTransformer):
    """Less the words of errors, which no caller acts on, and less annotations.

    With `from __future__ import annotations` no annotation of ours is evaluated.
    """

    def visit_Raise(self, node: ast.Raise) -> ast.Raise:
        if isinstance(node.exc, ast.Call):
            texts = (ast.JoinedStr, ast.Constant, ast.BinOp)
            node.exc.args = [
                ast.Constant("") if isinstance(one, texts) else one for one in node.exc.args
            ]
        self.generic_visit(node)
        return node

    def visit_arg(self, node: ast.arg) -> ast.arg:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        node.returns = None
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.annotation = ast.Constant(None)
        self.generic_visit(node)
        return node


def meaning(text: str) -> str | None:
    """What Python makes of a text, less its words; None where it cannot read it."""
    try:
        return ast.dump(_WithoutWords().visit(ast.parse(text)))
    except SyntaxError:
        return None
