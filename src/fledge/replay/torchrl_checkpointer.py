"""Save and load a `CompressedStorage` through TorchRL's `dumps` and `loads`, as one native file in their folder.

`loads` verifies every byte and runs no code; an error leaves the storage unchanged.
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
    """Checkpointer that writes the compressed rows without decoding them."""

    def dumps(self, storage: CompressedStorage, path: str | os.PathLike[str]) -> None:
        """Write the storage durably into a folder."""
        save_checkpoint(storage.state_dict(), Path(path) / FILE)

    def loads(self, storage: CompressedStorage, path: str | os.PathLike[str]) -> None:
        """Load the storage from a folder."""
        storage.load_state_dict(load_checkpoint(Path(path) / FILE))

    def register_save_hook(self, hook: Callable[..., Any]) -> None:
        """Raise InputError: hooks need whole TensorDicts, which are never made."""
        raise InputError("A CompressedStorage is saved without hooks: change the rows before they are added.")

    register_load_hook = register_save_hook
