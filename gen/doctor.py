"""``dstar doctor``: which tools are here, which are missing and how to get them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dstar.verif.survey import Tool, survey


def _state(tool: Tool) -> str:
    if tool.ok:
        return "ok"
    lack = "too old" if tool.version else "missing" if tool.found is None else "unusable"
    return lack if tool.required else f"{lack} (optional)"


def _table(tools: Sequence[Tool]) -> Table:
    table = Table("tool", "state", "version", "needed", "found")
    for tool in tools:
        colour = "green" if tool.ok else "red" if tool.required else "yellow"
        state = f"[{colour}]{_state(tool)}[/{colour}]"
        table.add_row(tool.name, state, tool.version or "-", tool.needed, escape(tool.found or "-"))
    return table


def _lines(tools: Sequence[Tool]) -> list[str]:
    """The table as plain text, one line a tool, easy to search in a CI log."""
    return [
        f"{tool.name}: {_state(tool)}; version {tool.version or 'none'}, needed {tool.needed}"
        f"; {tool.found or 'not found'}"
        for tool in tools
    ]


def _advice(tools: Sequence[Tool]) -> list[str]:
    """What was seen besides, and how to get what is missing."""
    lines = [f"note: {tool.name}: {note}" for tool in tools for note in tool.notes]
    lines += [f"get {tool.name}: {tool.hint}" for tool in tools if not tool.ok]
    bad = [tool.name for tool in tools if tool.required and not tool.ok]
    verdict = f"not ready: {', '.join(bad)}" if bad else "ready: everything needed is here"
    return [*lines, verdict]


def run_doctor(console: Console | None = None) -> int:
    """Print each tool found, with version and path, and what is missing and how to get it.

    A table on a terminal, else one plain line a tool.

    Returns:
        The exit code: 0 when everything that is needed is there, else 1.
    """
    console = console or Console()
    tools = survey()
    if console.is_terminal:
        console.print(_table(tools))
    else:
        console.print(*_lines(tools), sep="\n", markup=False, highlight=False, soft_wrap=True)
    console.print(*_advice(tools), sep="\n", markup=False, highlight=False, soft_wrap=True)
    return int(any(tool.required and not tool.ok for tool in tools))
