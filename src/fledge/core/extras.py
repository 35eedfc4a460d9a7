"""Import optional packages; if a package is missing, the error has the command that installs it.

Fledge is installed from a checkout or a wheel, not from PyPI, so the command names the path of the checkout or wheel.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlparse

from fledge.core.errors import MissingExtraError

PACKAGE = Path(__file__).parents[1]


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Turn a failed import in the `with` block into a MissingExtraError that says how to install Fledge's extra `name`."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or name).partition(".")[0]
        raise MissingExtraError(f"{package} is not installed. Install it: {install_command(name)}") from error


def installed(package: str) -> bool:
    """Return whether a package can be imported; it is not imported."""
    return importlib.util.find_spec(package) is not None


def install_command(name: str) -> str:
    """Return the command that installs the packages of an extra, from the place that Fledge was installed from."""
    python = Path(sys.executable)
    if python.is_relative_to(Path.cwd()):
        python = python.relative_to(Path.cwd())
    return f"{shlex.quote(str(python))} -m pip install {requirement(name)}"


def requirement(name: str) -> str:
    """Return pip's argument that installs an extra: from the checkout or the wheel, or by name if neither is known."""
    checkout = PACKAGE.parents[1]
    if (checkout / "pyproject.toml").is_file():
        return f"-e {shlex.quote(f'{checkout}[{name}]')}"
    url, is_folder = installed_from()
    if is_folder:
        return shlex.quote(f"{unquote(urlparse(url).path)}[{name}]")
    return shlex.quote(f"fledge[{name}] @ {url}" if url else f"fledge[{name}]")


def installed_from() -> tuple[str, bool]:
    """Return the URL that pip installed Fledge from ("" if it is not known), and whether it is a folder."""
    from importlib.metadata import PackageNotFoundError, distribution  # loads slowly

    try:
        noted = json.loads(distribution("fledge").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        noted = {}
    return str(noted.get("url", "")), "dir_info" in noted
