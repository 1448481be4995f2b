"""Tables: data frames of pandas if it is installed, otherwise tables of Arrow, otherwise lists of dicts."""

import importlib
from typing import Any


def table(rows: list[dict[str, Any]], columns: list[str] | None = None) -> Any:
    """Rows as a table.

    >>> rows = [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]
    >>> list(table(rows)["loss"]) if hasattr(table(rows), "columns") else table(rows)
    [0.5, 0.25]
    """
    columns = columns or list(dict.fromkeys(name for row in rows for name in row))
    filled = [{name: row.get(name) for name in columns} for row in rows]
    try:
        return importlib.import_module("pandas").DataFrame(filled, columns=columns)
    except ImportError:
        pass
    try:
        arrow = importlib.import_module("pyarrow")
        return arrow.table({name: [row[name] for row in filled] for name in columns})
    except ImportError:
        return filled
