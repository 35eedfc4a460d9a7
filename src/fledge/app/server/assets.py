"""Static files: the app's own under /assets, and the page folders of tasks (`TaskView.page`) under /tasks/NAME."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

STATIC = Path(__file__).parents[1] / "static"
SUFFIXES = (".js", ".css", ".svg")  # other files are not served
CACHE = {"cache-control": "no-cache"}  # the browser asks each time, and gets the file if it has changed


class TaskPages:
    """The page folders that may be served: those of tasks that the app has loaded. A URL never makes it load one."""

    def __init__(self) -> None:
        self._folders: dict[str, Path] = {}

    def add(self, name: str, folder: Path | None) -> None:
        """Serve a task's page folder from now on; None is a task without one."""
        if folder is not None:
            self._folders[name] = folder

    def url(self, name: str, file: str) -> str | None:
        """The URL of a file in a task's page folder; None if the task has no such file."""
        return f"/tasks/{quote(name, safe='')}/{file}" if self.find(name, file) else None

    def styles(self, name: str) -> list[str]:
        """The URLs of the style sheets in a task's page folder."""
        folder = self._folders.get(name)
        files = sorted(path.name for path in folder.glob("*.css")) if folder else []
        return [f"/tasks/{quote(name, safe='')}/{file}" for file in files]

    def find(self, name: str, file: str) -> Path | None:
        """A file of a task's page folder."""
        folder = self._folders.get(name)
        known = {path.name: path for path in folder.iterdir() if path.suffix in SUFFIXES} if folder else {}
        return known.get(file)


def serve_assets(api: Any, task_pages: TaskPages) -> None:
    """Add the routes of static files."""
    from starlette.responses import FileResponse, Response
    from starlette.staticfiles import StaticFiles

    class Assets(StaticFiles):
        async def get_response(self, path: str, scope: Any) -> Response:
            if Path(path).suffix not in SUFFIXES:
                return Response(status_code=404)
            response = await super().get_response(path, scope)
            response.headers.update(CACHE)
            return response

    api.mount("/assets", Assets(directory=STATIC))

    @api.get("/tasks/{name}/{file}")
    def task_file(name: str, file: str) -> Any:
        path = task_pages.find(name, file)
        return Response(status_code=404) if path is None else FileResponse(path, headers=CACHE)
