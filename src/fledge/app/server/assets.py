"""Static files: the app's own under /assets, and the page folders of tasks (`TaskView.page`) under /tasks/NAME."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

STATIC = Path(__file__).parents[1] / "static"
SUFFIXES = (".js", ".css", ".svg")  # other files are not served
CACHE = {"cache-control": "no-cache"}  # the browser asks each time, and gets the file if it has changed


class TaskPages(dict[str, Path]):
    """Page folders by task. Only those of tasks that the app has loaded: a URL never makes it load one."""

    def urls(self, name: str, pattern: str) -> list[str]:
        """Return the URLs of files in a task's page folder, sorted; none if it has no page."""
        files = sorted(self[name].glob(pattern)) if name in self else []
        return [f"/tasks/{quote(name, safe='')}/{path.name}" for path in files]


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
        known = {path.name: path for path in task_pages[name].iterdir()} if name in task_pages else {}
        if file not in known or known[file].suffix not in SUFFIXES:
            return Response(status_code=404)
        return FileResponse(known[file], headers=CACHE)
