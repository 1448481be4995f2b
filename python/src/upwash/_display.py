"""What notebooks show."""

import html
import os
from pathlib import Path

from .errors import RunDirectoryError


class Svg:
    """A picture: shown by notebooks, and saved by `save`.

    >>> Svg("<svg/>")
    <upwash.Svg of 6 characters: save it, or show it in a notebook>
    """

    def __init__(self, text: str) -> None:
        self.text = text

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the picture to a file."""
        return write(path, self.text)

    def _repr_svg_(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<upwash.Svg of {len(self.text)} characters: save it, or show it in a notebook>"


def write(path: str | os.PathLike[str], text: str) -> Path:
    """Writes a file."""
    path = Path(path)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RunDirectoryError(f"cannot write {path}: {error}") from error
    return path


def table(rows: list[dict[str, object]]) -> str:
    """Rows as an HTML table."""
    if not rows:
        return "<p>nothing</p>"

    def cell(value: object) -> str:
        return html.escape(f"{value:.4g}" if isinstance(value, float) else str(value))

    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{cell(value)}</td>" for value in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def row_of_figures(figures: list[Svg]) -> str:
    """Pictures side by side."""
    style = "display:inline-block;width:31em;max-width:100%;vertical-align:top"
    return "".join(f'<div style="{style}">{figure.text}</div>' for figure in figures)
