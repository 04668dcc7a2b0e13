"""Sharing models on the Hugging Face Hub: `upload`, `model_card`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from torch import nn

from neuralfunctionals.errors import UserError
from neuralfunctionals.models.league import league

HUB_METADATA = """---
library_name: neuralfunctionals
license: mit
tags:
- weight-space-learning
---

"""
"""Start of a card, for the hub's search."""


def model_card(model: nn.Module, name: str) -> str:
    """What a model takes, its size, and how to load it, as Markdown.

    Args:
        model: The model.
        name: Its id on the hub, or its directory.
    """
    spec = getattr(model, "spec", None)
    facts = [] if spec is None else [f"Input: networks {spec}."]
    facts += [f"League: {league(model)}.", f"{sum(p.numel() for p in model.parameters()):,} parameters."]
    return f"""{HUB_METADATA}# {type(model).__name__}

A model that takes the weights of other networks as input, made with `neuralfunctionals`.

{chr(10).join(f"- {fact}" for fact in facts)}

```python
import neuralfunctionals as nf

model = nf.from_pretrained("{name}")
```
"""


def upload(folder: Path, repo_id: str, *, token: str | None = None, **kwargs: Any) -> str:
    """Uploads a folder as a model.

    Args:
        folder: The files.
        repo_id: Its name on the hub, such as `"you/your-model"`.
        token: The user's token. Defaults to that of `hf auth login`.
        **kwargs: For the hub's `create_repo`, such as `private`.

    Returns:
        The address of the upload.
    """
    try:
        api = HfApi(token=token)
        api.create_repo(repo_id, exist_ok=True, **kwargs)
        return str(api.upload_folder(repo_id=repo_id, folder_path=folder))
    except Exception as error:  # of the network, or the hub's own
        reason = (str(error).strip().splitlines() or [""])[0].rstrip(".")
        raise UserError(
            f"Cannot upload to {repo_id} on the Hugging Face Hub: {type(error).__name__}: {reason}. Check the name, "
            "the network and your login (hf auth login)."
        ) from error
