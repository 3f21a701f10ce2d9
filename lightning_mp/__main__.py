"""`python -m lightning_mp` is `lightning-mp`."""

from __future__ import annotations

from lightning_mp.cli.main import main

raise SystemExit(main())
