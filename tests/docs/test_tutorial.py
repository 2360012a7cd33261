"""The tutorial, typed as it is written, into an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from project import ROOT

pytest.importorskip("torch", reason="the extra `runtime` is not installed")

#: Commands as they are where Stagecut is installed.
INSTALLED = """
stagecut() { "$PYTHON" -m stagecut "$@"; }
torchrun() { "$PYTHON" -m torch.distributed.run --standalone "$@"; }
set -e
"""


@pytest.mark.slow
def test_from_model_to_pipeline(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "from_model_to_pipeline.md").read_text()
    (model,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "models.py").write_text(model)
    typed = INSTALLED + "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
    env = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT / ".dev")}
    done = subprocess.run(
        ["bash", "-c", typed], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [float(x) for x in re.findall(r"step +\d+  loss (\S+)", done.stdout)]
    assert len(losses) == 20
    assert losses[9] < losses[0] / 2  # the GPT
    assert losses[19] < losses[10]  # the ResNet
    assert (tmp_path / "gpt.svg").exists()
