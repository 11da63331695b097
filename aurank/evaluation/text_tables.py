"""Tables as text for other programs: Markdown, LaTeX and HTML, every cell escaped."""

from collections.abc import Sequence
from html import escape

Row = Sequence[str]
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_LATEX |= {sign: f"\\{sign}" for sign in "&%$#_{}"}
_MARKDOWN = {sign: f"\\{sign}" for sign in "\\|`*"} | {"<": "&lt;", "&": "&amp;"}


def markdown_table(head: Row, rows: Sequence[Row]) -> str:
    """Return a table of GitHub's Markdown, the first column to the left and the others to the right.

    Example:
        >>> print(markdown_table(["metric", "value"], [["a|b", "0.5"]]))
        | metric | value |
        |---|---:|
        | a\\|b | 0.5 |
    """
    first, *others = ["| " + " | ".join(_escaped(cell, _MARKDOWN) for cell in line) + " |" for line in (head, *rows)]
    return "\n".join([first, "|---" + "|---:" * (len(head) - 1) + "|", *others])


def latex_table(head: Row, rows: Sequence[Row]) -> str:
    r"""Return a LaTeX tabular with the rules of booktabs.

    Example:
        >>> print(latex_table(["model", "recall@1"], [["a_b", "0.5"]]))
        \begin{tabular}{lr}
        \toprule
        model & recall@1 \\
        \midrule
        a\_b & 0.5 \\
        \bottomrule
        \end{tabular}
    """
    first, *others = [" & ".join(_escaped(cell, _LATEX) for cell in line) + r" \\" for line in (head, *rows)]
    begin = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
    return "\n".join([begin, r"\toprule", first, r"\midrule", *others, r"\bottomrule", r"\end{tabular}"])


def html_table(head: Row, rows: Sequence[Row]) -> str:
    """Return an HTML table.

    Example:
        >>> html_table(["metric"], [["<b>"]])
        '<table><thead><tr><th>metric</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    first = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    others = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{first}</tr></thead><tbody>{others}</tbody></table>"


def _escaped(cell: str, signs: dict[str, str]) -> str:
    """Return a cell on one line, each sign that means something written so that it means nothing."""
    return "".join(signs.get(sign, sign) for sign in " ".join(cell.split()))
