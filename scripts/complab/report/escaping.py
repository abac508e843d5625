"""How does measured text stay text in Markdown and in LaTeX?

A guard, a path or a message of torch may hold what either takes for markup.
"""

import re

from tabulate import LATEX_ESCAPE_RULES

# A bar would be printed as a dash.
_LATEX = LATEX_ESCAPE_RULES | {"|": r"\textbar{}"}


def markdown(text: str, in_table: bool = True) -> str:
    """The text as Markdown prints it, in a table (there on one line) or outside."""
    text = text.replace("<", "&lt;").replace("*", "\\*")
    return text.replace("|", "\\|").replace("\n", " ") if in_table else text


def latex(text: str) -> str:
    """The text as LaTeX prints it, two hyphens as two."""
    return re.sub("-(?=-)", "-{}", "".join(_LATEX.get(character, character) for character in text))
