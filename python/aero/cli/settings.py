"""Options of several commands as settings of a recipe."""

from __future__ import annotations

import json
from pathlib import Path


def data_settings(data: str | None) -> list[str]:
    """`--data` as a setting: a path as seen from anywhere, other names as they are."""
    if data is None:
        return []
    path = Path(data).expanduser()
    is_path = data != "stdlib" and path.exists()
    return [f"data.source={json.dumps(str(path.resolve()) if is_path else data)}"]
