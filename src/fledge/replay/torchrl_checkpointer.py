"""What TorchRL's `dumps` and `loads` do with a `CompressedStorage`: one native file in the folder they are given.

Contract
    `loads` takes what `dumps` wrote, every byte checked and nothing of it run; on an error the storage is as it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fledge.core.errors import InputError
from fledge.core.extras import extra
from fledge.storage.checkpoint import load_checkpoint, save_checkpoint

with extra("torchrl"):
    from torchrl.data.replay_buffers.checkpointers import StorageCheckpointerBase

if TYPE_CHECKING:
    from fledge.replay.torchrl_storage import CompressedStorage

FILE = "storage.fledge"


class CompressedStorageCheckpointer(StorageCheckpointerBase):
    """Compressed rows as they lie, in a file of their own."""

    def dumps(self, storage: CompressedStorage, path: str | os.PathLike[str]) -> None:
        """Write the storage into a folder, durably."""
        save_checkpoint(storage.state_dict(), Path(path) / FILE)

    def loads(self, storage: CompressedStorage, path: str | os.PathLike[str]) -> None:
        """Take over what was written into a folder."""
        storage.load_state_dict(load_checkpoint(Path(path) / FILE))

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Not here: a hook changes whole TensorDicts, and there are none."""
        raise InputError(
            "a CompressedStorage is saved compressed, without hooks: change the rows before they are added."
        )

    register_load_hook = register_save_hook
