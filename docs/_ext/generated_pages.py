"""Fill the generated parts of the reference when Sphinx reads a page.

A page names what it wants in an HTML comment on a line of its own; the comment is replaced by Markdown:

    <!-- commands -->                every command of `fledge` with its arguments and options, from click
    <!-- settings: navigation env -->  a table of the settings `env.*` of a task, from its config class
    <!-- api: PPO PPOConfig -->      the documentation of these names of the package `fledge`, from their docstrings
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import click
from docutils import nodes
from pygments.lexer import RegexLexer
from pygments.token import Comment, Text

MARKER = re.compile(r"^<!-- (commands|settings|api)(?:: ([^>]*?))? -->$", re.MULTILINE)


def escape(text: str) -> str:
    """Return plain text with `code` as Markdown."""
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [re.sub(r"([*_<>\[\]])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


class CommandLexer(RegexLexer):
    """Command lines with comments; words such as `eval` have no colour of their own."""

    tokens = {"root": [(r"(?<!\S)#.*", Comment), (r"[^\s]+|\s+", Text)]}


def cell(text: str) -> str:
    """Return plain text with `code` for a cell of a Markdown table."""
    return escape(" ".join(text.split())).replace("|", "\\|")


def code(text: str) -> str:
    """Return text as code in a cell of a Markdown table."""
    return f"`{text}`".replace("|", "\\|") if text else ""


# ---- commands ----------------------------------------------------------------------------------------------------------


def commands(argument: str) -> str:
    """Return a section for every command."""
    from fledge.cli import main

    return "\n".join(
        line
        for name in sorted(main.commands)
        for line in command_section(name, main.commands[name])
    )


def command_section(name: str, command: click.Command) -> Iterator[str]:
    """Yield the lines of the section of one command: usage, help and options, as `--help` has them."""
    context = click.Context(command, info_name=f"fledge {name}", max_content_width=100)
    yield f"\n## fledge {name}\n"
    yield f"```text\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n"
    yield from prose(command.help or "")
    yield "\n| option | meaning |\n|---|---|"
    for option in command.get_params(context):
        record = option.get_help_record(context)
        if record and record[1]:
            yield f"| {code(record[0])} | {cell(record[1])} |"
    yield ""
    yield from prose(command.epilog or "")


def prose(text: str) -> Iterator[str]:
    """Yield paragraphs of a help text; those that click must not wrap (marked by \\b) become code."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph.startswith("\b"):
            yield f"```text\n{paragraph.removeprefix(chr(8)).strip(chr(10))}\n```\n"
        else:
            yield escape(paragraph) + "\n"


# ---- settings ----------------------------------------------------------------------------------------------------------


def settings(argument: str) -> str:
    """Return a table of the settings of a task whose key begins with one of the given groups; "run" means no group."""
    from fledge.core.config_help import field_help
    from fledge.training.config import make_config

    task, *groups = argument.split()
    kind = type(make_config(task))
    rows = ["| setting | default | meaning |", "|---|---|---|"]
    for key, field in field_help(kind).items():
        if (key.partition(".")[0] if "." in key else "run") in groups:
            limits = (
                f"{field.type_name}, {field.limits}"
                if field.limits
                else field.type_name
            )
            rows.append(
                f"| {code(key)} | {code(field.default)} | {cell(field.help)} *({cell(limits)})* |"
            )
    if len(rows) == 2:
        raise ValueError(f"{task} has no settings in {groups}")
    return "\n".join(rows)


# ---- API ---------------------------------------------------------------------------------------------------------------


def api(argument: str) -> str:
    """Return autodoc directives for names of the package."""
    import fledge

    lines = ["```{eval-rst}"]
    for name in argument.split():
        if inspect.isclass(getattr(fledge, name)):
            lines += [f".. autoclass:: fledge.{name}", "   :members:", ""]
        else:
            lines += [f".. autofunction:: fledge.{name}", ""]
    return "\n".join([*lines, "```"])


COLON = "\ue000"  # stands for a colon while napoleon reads a docstring
SECTION = re.compile(
    r"\s*(Args|Returns|Raises|Yields|Example|Examples|Note|Attributes):\s*$"
)


def plain_to_rst(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    """Turn our docstrings, which are plain text with `code`, into reStructuredText: code as code, other marks escaped."""
    if what in ("attribute", "property", "data") and lines:
        lines[0] = lines[0].replace(
            ":", COLON
        )  # napoleon would read "text: more" there as "type: description"
    result: list[str] = []
    previous, block = (
        "",
        -1,
    )  # the last line that is not empty; indentation of the lines around an indented block
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if line.strip() and indent <= block:
            block = -1
        before = len(previous) - len(previous.lstrip())
        after_gap = bool(result) and not result[-1].strip()
        if (
            block < 0
            and after_gap
            and previous
            and indent >= before + 4
            and not SECTION.match(previous)
        ):
            result += [" " * before + "::", ""]
            block = before
        if block < 0:
            parts = re.split(r"(`+[^`]+`+)", line)
            parts[::2] = [
                re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", part) for part in parts[::2]
            ]
            parts[1::2] = [f"``{part.strip('`')}``\\ " for part in parts[1::2]]
            line = "".join(parts)
        result.append(line)
        previous = line if line.strip() else previous
    lines[:] = returns_as_field(result)


def restore_colons(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    lines[:] = [line.replace(COLON, ":") for line in lines]


def returns_as_field(lines: list[str]) -> list[str]:
    """Turn a `Returns:` section into a field; napoleon would read "The run: its folder" in it as "type: description"."""
    for start, line in enumerate(lines):
        if line.strip() == "Returns:":
            indent = len(line) - len(line.lstrip())
            end = start + 1
            while end < len(lines) and (
                not lines[end].strip()
                or len(lines[end]) - len(lines[end].lstrip()) > indent
            ):
                end += 1
            text = " ".join(part.strip() for part in lines[start + 1 : end])
            return [
                *lines[:start],
                f"{' ' * indent}:returns: {text.strip()}",
                "",
                *lines[end:],
            ]
    return lines


def dashes(app: Any, doctree: Any, docname: str) -> None:
    """Replace the two hyphens that Sphinx puts behind the name of a parameter by a dash."""
    for text in list(doctree.findall(nodes.Text)):
        if text.astext() == " -- ":
            text.parent.replace(text, nodes.Text(" \N{EN DASH} "))


MAKERS: dict[str, Callable[[str], str]] = {
    "commands": commands,
    "settings": settings,
    "api": api,
}


def fill(app: Any, docname: str, source: list[str]) -> None:
    """Replace the markers of a page."""
    source[0] = MARKER.sub(lambda found: MAKERS[found[1]](found[2] or ""), source[0])


def setup(app: Any) -> dict[str, bool]:
    app.add_lexer("commands", CommandLexer)
    app.connect("source-read", fill)
    app.connect("doctree-resolved", dashes)
    app.connect(
        "autodoc-process-docstring", plain_to_rst, priority=400
    )  # before napoleon
    app.connect("autodoc-process-docstring", restore_colons, priority=600)
    return {"parallel_read_safe": True}
