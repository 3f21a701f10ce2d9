"""Train the quickstart on a small log into the folder given, bundle and all: `python .ci/train_tiny.py FOLDER`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lightning_mp.cli.main import main

folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)
os.chdir(folder)
sys.exit(main(["fit", "--config", "quickstart", "--data.synthetic.impressions=30000", "--trainer.max_epochs=1"]))
