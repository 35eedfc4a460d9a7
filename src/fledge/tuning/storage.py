"""The storage of a study: a journal file in the sweep's folder, PostgreSQL, or a gRPC proxy in front of one."""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fledge.core.errors import ConfigError, FledgeError, StorageError
from fledge.core.extras import extra
from fledge.storage.disk.durable import folder_lock

with extra("tune"):
    import optuna
    from optuna.storages import BaseStorage, JournalStorage
    from optuna.storages.journal import JournalFileBackend

JOURNAL = "journal.log"
TRIES = 5  # workers that connect at the same time all create the tables, and all but one fail
FORMS = "postgresql://USER@HOST/DATABASE or grpc://HOST:PORT; without --storage, a journal file in the folder is used"
optuna.logging.set_verbosity(optuna.logging.ERROR)
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)  # GrpcStorageProxy


class Journal(JournalFileBackend):
    """Optuna's journal file, locked by the system and safe against torn lines.

    The system releases the lock of a killed process at once. A line that its process did not finish (killed, disk full) is
    removed before the next line is written: appended to it, that would be unreadable as well, and with it the study.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path, self.line = path, 0

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:  # type: ignore[override]
        self.line = log_number_from + 1
        try:
            for log in super().read_logs(log_number_from):
                if not isinstance(log, dict):
                    raise ValueError("not an object")
                yield log
                self.line += 1
        except (ValueError, RecursionError) as error:
            raise self.damaged() from error

    def damaged(self) -> StorageError:
        """Return the error for the line that was read last."""
        return StorageError(
            f"Line {self.line} of {self.path} is damaged: stop all workers of the sweep, restore the file or move it away, "
            "and run the command again. Without the file, the trials keep the parameters and results in their own files."
        )

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with folder_lock(self.path.parent), open(self.path, "r+b", buffering=0) as file:
            end = whole_lines(file)
            file.truncate(end)
            file.seek(end)
            try:
                if file.write(text) != len(text):
                    raise OSError(28, os.strerror(28))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(end)
                raise


def whole_lines(file: Any) -> int:
    """Return the number of bytes up to the end of the last line that is complete."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65536)
        file.seek(start)
        if (found := file.read(end - start).rfind(b"\n")) >= 0:
            return start + found + 1
        end = start
    return 0


def check_storage(url: str) -> None:
    """Raise ConfigError unless the URL names a storage that several workers can share."""
    scheme, sign, rest = url.partition("://")
    kind = scheme.partition("+")[0]
    if kind == "sqlite":
        raise ConfigError(
            "SQLite locks its whole file and loses writes of parallel workers, above all on network file systems: leave "
            "--storage out for a journal file, or use postgresql://USER@HOST/DATABASE."
        )
    if url and (kind not in ("postgresql", "grpc") or not sign or not rest):
        raise ConfigError(f"--storage {url} is not a storage: use {FORMS}.")


def open_storage(url: str, folder: Path) -> BaseStorage:
    """Open the storage at a URL; "" is the journal file in `folder`."""
    check_storage(url)
    if not url:
        journal = Journal(folder / JOURNAL)
        try:
            return JournalStorage(journal)
        except (FledgeError, OSError):
            raise
        except Exception as error:  # of an operation that lacks a field, or follows from no other
            raise journal.damaged() from error
    scheme, _, rest = url.partition("://")
    try:
        if scheme == "grpc":
            host, _, port = rest.rstrip("/").rpartition(":")
            proxy = optuna.storages.GrpcStorageProxy(host=host or rest, port=int(port or 13000))
            proxy.wait_server_ready(timeout=10)
            return proxy
        with extra("postgres"):
            import psycopg  # noqa: F401
        for last in range(TRIES):
            try:
                return optuna.storages.RDBStorage(f"postgresql+psycopg://{rest}", engine_kwargs={"pool_pre_ping": True})
            except Exception:
                if last == TRIES - 1:
                    raise
                time.sleep(0.2 * 2**last)
    except FledgeError:
        raise
    except Exception as error:
        why = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        place = rest.rpartition("@")[2]
        raise ConfigError(f"The storage {scheme}://{place} cannot be opened ({why}): check that it runs.") from error
    raise AssertionError("unreachable")


def open_study(storage: BaseStorage, name: str, **options: Any) -> optuna.Study:
    """Create a study that is maximised, or open it if it exists."""
    return optuna.create_study(storage=storage, study_name=name, direction="maximize", load_if_exists=True, **options)
