"""A model as a folder that `aurank.load` takes, here or on the Hugging Face hub."""

import tempfile
from pathlib import Path
from typing import Any

from aurank.embedding.locations import RECORD
from aurank.embedding.stored.trained_model import store_model, stored_files
from aurank.errors import UserError, first_line
from aurank.exporting.card import write_model_card
from aurank.files import replacing_folder, write_text
from aurank.lazy import import_library
from aurank.models.image_model import ImageModel

_CARD = "README.md"


def save_model(model: ImageModel, folder: Path | str, *, licence: str | None = None) -> None:
    folder = Path(folder)
    if folder.exists():
        files = {path.name for path in folder.iterdir()} if folder.is_dir() else {""}
        stored = {RECORD, _CARD, *stored_files(folder)} if RECORD in files else set()
        if strangers := sorted(files - stored):
            reason = f"holds {strangers[0]!r}, which is of no saved model" if folder.is_dir() else "is a file"
            raise UserError(f"cannot save a model as {folder}: it {reason}; name a new folder")
    with replacing_folder(folder) as new:
        store_model(new, model)
        write_text(new / _CARD, write_model_card(model, licence))


def push_to_hub(
    model: ImageModel,
    repo_id: str,
    *,
    licence: str | None = None,
    private: bool | None = None,
    token: str | None = None,
) -> str:
    """Upload what `save_model` writes into a repository of the hub, made if needed; return the commit's URL."""
    hub = import_library("huggingface_hub", "push_to_hub")
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, folder, licence=licence)
        try:
            api: Any = hub.HfApi(token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            return str(api.upload_folder(repo_id=repo_id, folder_path=folder).commit_url)
        except Exception as error:  # of many kinds: a name that none can be, no token, no network
            raise UserError(f"the model cannot be pushed to {repo_id}: {first_line(error)}") from error
