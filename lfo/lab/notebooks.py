"""How notebooks begin, and executed ones without what differs between two runs of them."""

from __future__ import annotations

import base64
import io
import json
import os
from pathlib import Path

from PIL import Image

from lfo.config import ConfigError, located

SMOKE_RESULTS = "build/smoke"  # what the smoke profile writes never replaces results
COLOURS = 64  # of a figure in an executed notebook


def start_notebook(profile: str, results_dir: str | Path) -> tuple[str, Path]:
    """The profile and the results folder that apply, after changing to the repository root.

    The environment variable LFO_PROFILE wins over the notebook's own profile. Jupyter and nbval start
    in notebooks/, papermill where it is told to: afterwards relative paths mean the same in all of them.

    Raises:
        ConfigError: no config of configs/ has the profile's name.
    """
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").is_file():  # else lfo is installed elsewhere: stay in the working directory
        os.chdir(root)
    profile = os.environ.get("LFO_PROFILE") or profile
    known = sorted(p.stem for p in located("configs").glob("*.yaml"))
    if profile not in known:
        raise ConfigError(f"there is no profile '{profile}'; profiles: {', '.join(known)}.")
    return profile, Path(SMOKE_RESULTS if profile == "smoke" else results_dir)


def tidy_notebook(path: str | Path) -> Path:
    """Drop from an executed notebook what differs between two runs: times, paths, progress bars (stderr).

    Its figures are stored with few colours, about a fifth of the bytes; a table is kept as HTML, not as text besides.
    """
    path = Path(path)
    try:
        book = json.loads(path.read_text(encoding="utf-8"))
        if not all({"cell_type", "metadata"} <= set(cell) for cell in book["cells"]) or "metadata" not in book:
            raise KeyError
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} is no notebook; name an .ipynb that papermill has written.") from None
    kept = {"kernelspec": book["metadata"].get("kernelspec", {}), "language_info": {"name": "python"}}
    book["metadata"] = kept
    for cell in book["cells"]:
        tags = cell["metadata"].get("tags", [])
        cell["metadata"] = {"tags": tags} if tags else {}
        if "injected-parameters" in tags:
            cell["id"] = "injected-parameters"  # papermill draws it
        if cell["cell_type"] == "code":
            cell["outputs"] = [out for out in cell["outputs"] if out.get("name") != "stderr"]
        for data in (out.get("data", {}) for out in cell.get("outputs", [])):
            if "image/png" in data:
                data["image/png"] = _with_palette(data["image/png"])
            if "text/html" in data:
                data.pop("text/plain", None)
    text = json.dumps(book, indent=1, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
    return path


def _with_palette(png: str) -> str:
    """A base64 PNG with at most `COLOURS`; left alone where it is one already."""
    image = Image.open(io.BytesIO(base64.b64decode(png)))
    if image.mode == "P" and image.getcolors(COLOURS):
        return png
    out = io.BytesIO()
    image.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(out, "png", optimize=True)
    return base64.b64encode(out.getvalue()).decode()
