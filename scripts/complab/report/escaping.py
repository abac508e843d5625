"""How does measured text stay text in Markdown and in LaTeX?

A guard, a path or a message of torch may hold what either takes for markup.
"""

from tabulate import LATEX_ESCAPE_RULES


def markdown(text: str, in_table: bool = True) -> str:
    """The text as Markdown prints it, in a table (there on one line) or outside."""
    text = text.replace("<", "&lt;").replace("*", "\\*")
    return text.replace("|", "\\|").replace("\n", " ") if in_table else text


def latex(text: str) -> str:
    """The text as LaTeX prints it."""
    return "".join(LATEX_ESCAPE_RULES.get(character, character) for character in text)
