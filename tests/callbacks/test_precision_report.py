"""The page that is opened after a run: what it names first when a run goes wrong, and that it is there at all."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_mp import (
    GradientClipping,
    GradientUnderflowMonitor,
    KeepInFP32,
    LearningRateWarmup,
    LossFluctuationMonitor,
    LossScaleMonitor,
    NonFiniteMonitor,
    NormGuard,
    PrecisionLint,
    PrecisionReport,
    mixed_precision,
)
from lightning_mp.callbacks.precision_report_page import SECTIONS
from lightning_mp.optim.warmup_decay_lr import WarmupDecayLR

_OURS = "lightning_mp.errors.LightningMPWarning"
pytestmark = [
    pytest.mark.filterwarnings(f"ignore:.*:{_OURS}"),  # monitors warn of what is planted here
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),  # the first step of some is skipped
]
MONITORS = [LossScaleMonitor, GradientUnderflowMonitor, KeepInFP32, NonFiniteMonitor]


class Clicks(pl.LightningModule):
    """An embedding table and a small tower with normalisation."""

    def __init__(self, *, norm: bool = True, boost: float = 1.0, jump: float = 1.0) -> None:
        super().__init__()
        self.table = nn.Embedding(1000, 8)
        middle = nn.BatchNorm1d(32) if norm else nn.Identity()
        self.tower = nn.Sequential(nn.Linear(36, 32), middle, nn.ReLU(), nn.Linear(32, 1))
        self.boost, self.jump = boost, jump

    def forward(self, ids: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        inputs = torch.cat([self.table(ids).flatten(1), x], 1) * self.boost
        return self.tower(inputs).float().squeeze(1)

    def _loss(self, batch: Any) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(self(batch[0], batch[1]), batch[2])

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self._loss(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self._loss(batch))

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.log("test_loss", self._loss(batch))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: self.jump if 12 <= k < 15 else 1.0)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


def clicks(rows: int = 3072, *, batch: int = 128, rate: float = 0.1, leak: bool = False, nan: bool = False) -> Any:
    label = (torch.rand(rows) < rate).float()
    x = torch.randn(rows, 4)
    if leak:
        x[:, 2] = 3 * label + torch.rand(rows)
    if nan:
        x[300, 1] = float("nan")
    return DataLoader(TensorDataset(torch.randint(1000, (rows, 4)), x, label), batch_size=batch)


def fit(
    make_trainer: Any, report: PrecisionReport, module: Any, loader: Any, *others: Any, scale: float = 1024.0
) -> pl.Trainer:
    trainer = make_trainer(scale=scale, callbacks=[report, *others], max_epochs=2)
    trainer.fit(module, loader, clicks(256))
    return trainer


def first(report: PrecisionReport) -> dict[str, Any]:
    """The page's own first finding, as a reader meets it."""
    assert report.path is not None
    found = json.loads(report.path.with_suffix(".json").read_text())["findings"][0]
    notices = re.findall(r'<div class="notice .*?</div>', report.path.read_text(), flags=re.DOTALL)
    words = html.unescape(re.sub("<[^>]+>", "", notices[0]))
    assert found["code"] in words
    assert found["cure"].replace("`", "") in words
    return found


@pytest.fixture(params=["alone", "beside the monitors"])
def others(request: pytest.FixtureRequest) -> list[Any]:
    return [] if request.param == "alone" else [GradientUnderflowMonitor(every_n_steps=2), LossScaleMonitor()]


def test_a_scale_that_collapses_is_the_first_finding(make_trainer, others):
    report = PrecisionReport("report")
    fit(make_trainer, report, Clicks(boost=1e7), clicks(), *others)
    found = first(report)
    assert (found["code"], found["severity"]) == ("MP201", "error")
    assert "`tower.0`" in found["problem"]
    assert "KeepInFP32" in found["cure"]


def test_an_embedding_that_underflows_is_the_first_finding(make_trainer, others):
    report = PrecisionReport("report")
    loader = clicks(4096, batch=2048, rate=0.02)
    fit(make_trainer, report, Clicks(), loader, *others, scale=2.0**-9)
    found = first(report)
    assert found["code"] == "MP202"
    assert "`table`" in found["problem"]
    assert "a loss scale of " in found["cure"]


def test_a_poisoned_normalisation_is_the_first_finding(make_trainer, others):
    report = PrecisionReport("report")
    fit(make_trainer, report, Clicks(), clicks(nan=True), *others)
    found = first(report)
    assert (found["code"], found["severity"]) == ("MP203", "error")
    assert "`tower.1`" in found["problem"]
    assert "NormGuard" in found["cure"]
    assert "batch 2 (step 2), `batch[1]`, rows 44, columns 1" in found["problem"]


def test_a_leaking_target_is_the_first_finding(make_trainer, others):
    report = PrecisionReport("report")
    fit(make_trainer, report, Clicks(), clicks(leak=True), *others)
    found = first(report)
    assert (found["code"], found["severity"]) == ("MP021", "error")
    assert "`input 1, column 2`" in found["problem"]
    assert "point in time" in found["cure"]


@pytest.mark.parametrize("warmed", [False, True])
def test_a_jump_of_the_learning_rate_is_the_first_finding(make_trainer, others, warmed):
    report = PrecisionReport("report")
    fit(make_trainer, report, Clicks(jump=5000.0), clicks(), *others, *[LearningRateWarmup(3)] * warmed)
    found = first(report)
    assert (found["code"], found["severity"]) == ("MP206", "error")
    assert "from 0.001 to 5 at step 12" in found["problem"] or warmed
    assert "max_lr=0.002" in found["cure"]


@pytest.mark.parametrize(
    ("warmup", "words"),
    [
        (5, None),
        (24, None),
        (30, "the warm-up of the learning rate took 30 of the fit's 48 steps (`LearningRateWarmup`)"),
        (
            1000,
            "the fit ended within the warm-up of the learning rate, after 48 of its 1,000 steps (`LearningRateWarmup`)",
        ),
    ],
)
def test_a_warm_up_that_takes_most_of_the_fit_is_told(make_trainer, warmup, words):
    report = PrecisionReport("report")
    fit(make_trainer, report, Clicks(), clicks(), LearningRateWarmup(warmup))
    told = [one for one in report.findings if one["code"] == "MP220"]
    assert [one["severity"] for one in told] == (["warning"] if words else [])
    for one in told:
        assert one["problem"].startswith(words)
        assert one["cure"] == "fewer warm-up steps, such as `warmup_steps: 4`, or more epochs"
        assert report.path is not None
        assert "warm-up too long" in report.path.read_text()


def test_a_schedule_that_warms_up_to_the_end_is_told(make_trainer):
    class Scheduled(Clicks):
        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=1e-4)
            return [optimizer], [{"scheduler": WarmupDecayLR(optimizer, warmup_steps=60), "interval": "step"}]

    report = PrecisionReport("report")
    fit(make_trainer, report, Scheduled(), clicks())
    (told,) = [one for one in report.findings if one["code"] == "MP220"]
    assert "after 48 of its 60 steps (`WarmupDecayLR`)" in told["problem"]


def test_what_the_fluctuation_monitor_found_is_told(make_trainer):
    report = PrecisionReport("report")
    monitor = LossFluctuationMonitor("val_loss", threshold=1e-6, window=1)
    make_trainer(callbacks=[monitor, report], max_epochs=6).fit(Clicks(jump=100.0), clicks(768), clicks(256))
    worse = [found for found in monitor.reports if not found.improved]
    told = [found for found in report.findings if found["code"] == "MP208"]
    assert bool(told) == bool(worse)
    if told:
        assert worse[-1].findings[0].text in told[0]["problem"]
        assert told[0]["cure"] == worse[-1].findings[0].cure


def test_what_the_linter_found_is_told_with_its_place(make_trainer):
    class Summed(Clicks):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            logits = self(batch[0], batch[1])
            return nn.functional.binary_cross_entropy_with_logits(logits, batch[2], reduction="sum")

    report = PrecisionReport("report")
    fit(make_trainer, report, Summed(), clicks(512), PrecisionLint())
    (told,) = [found for found in report.findings if found["code"] == "MP104"]
    assert "test_precision_report.py:" in told["problem"]
    assert "reduction='mean'" in told["cure"]
    assert told["page"] == "findings/MP104.md"


@pytest.mark.parametrize("harm", [False, True])
def test_a_high_learning_rate_is_a_note_at_the_end_unless_it_did_harm(make_trainer, harm):
    report = PrecisionReport("report")
    fit(make_trainer, report, Clicks(jump=5000.0 if harm else 1.0), clicks(), LossScaleMonitor(), PrecisionLint())
    codes = [one["code"] for one in report.findings]
    (told,) = [one for one in report.findings if one["code"] == "MP111"]
    assert told["severity"] == ("warning" if harm else "note")
    assert ("no sign of harm" in told["problem"]) != harm
    assert codes[0] == "MP206" if harm else codes[-1] == "MP111"


def test_in_two_processes_the_first_writes_one_page_of_all_skips(tmp_path):
    script = Path(__file__).with_name("report_of_two_processes.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], env=environment, timeout=240, check=False,
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    for kind in ("plain", "fused"):
        facts = json.loads((tmp_path / kind / "precision_report.json").read_text())
        assert facts["run"]["processes"] == 2
        scale = facts["loss_scale"]
        assert (scale["attempts"], scale["skipped"], scale["scale"]) == (8, 2, 256.0)
        assert [skip["step"] for skip in scale["skips"]] == [2, 5]
        assert {skip["origin"] for skip in scale["skips"]} == {"forward"}  # the loss that overflowed is one rank's
        assert len(facts["underflow"]["probes"]) >= 1
    assert (tmp_path / "rank1").read_text() == "None None"


def test_a_sound_run_has_no_error_and_all_sections(make_trainer):
    report = PrecisionReport("report")
    others = [LearningRateWarmup(5), KeepInFP32(), GradientClipping(0.5), NormGuard(), LossScaleMonitor()]
    fit(make_trainer, report, Clicks(), clicks(), *others)
    assert [f for f in report.findings if f["severity"] == "error"] == []
    page = report.path.read_text()
    assert re.findall("<h2>(.*?)</h2>", page) == list(SECTIONS)
    assert not re.search(r"<script|src=|href=|url\(|@import", page)
    facts = json.loads(Path("report/precision_report.json").read_text())
    assert facts["loss_scale"]["attempts"] == 48
    kept = {layer["layer"]: layer for layer in facts["float32"]["layers"]}
    assert kept["tower.0"]["verified"] is True
    assert "look-up" in kept["table"]["why"]
    curve = facts["learning_rate"]["lr-AdamW"]
    rates = dict(zip(curve["steps"], curve["values"], strict=True))
    assert rates[1] == pytest.approx(1e-3 * 0.02)
    assert rates[48] == pytest.approx(1e-3)
    assert facts["gradients"]["clipped_by"] == "GradientClipping"
    assert len(facts["metrics"]["val_loss"]["values"]) == 2
    assert max(facts["memory"]["resident"]["values"]) > 1e8


def test_skips_are_counted_and_marked_as_the_monitor_counts_them(make_trainer, toy, batches):
    counts = []
    for others in ([], [LossScaleMonitor()]):
        torch.manual_seed(1)
        report = PrecisionReport("report")
        make_trainer(callbacks=[*others, report]).fit(toy(bad={3}, steep={5, 6}), batches(12))
        scale = json.loads(report.path.with_suffix(".json").read_text())["loss_scale"]
        told = [(s["step"], s["scale"], s["origin"]) for s in scale["skips"]]
        counts.append((scale["attempts"], scale["skipped"], scale["scale"], told))
        assert "x: 3 skipped steps" in report.path.read_text()
        assert scale["skips"][1]["layers"]
    assert counts[0] == counts[1]
    assert counts[0][3] == [(3, 1024.0, "forward"), (5, 512.0, "backward"), (6, 256.0, "backward")]


def test_fused_optimizers_are_counted_too(make_trainer, toy, batches):
    report = PrecisionReport("report")
    make_trainer(callbacks=[report], log_every_n_steps=5).fit(toy(fused=True, steep={2, 8}), batches(12))
    scale = json.loads(report.path.with_suffix(".json").read_text())["loss_scale"]
    assert (scale["attempts"], scale["skipped"]) == (12, 2)


def test_the_runs_own_exception_comes_through_and_has_a_page(make_trainer, toy, batches):
    class Breaks(toy):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 4:
                raise KeyError("planted <b>")

    report = PrecisionReport("report")
    with pytest.raises(KeyError, match="planted"):
        make_trainer(callbacks=[report]).fit(Breaks(), batches(12))
    assert first(report)["code"] == "MP216"
    page = report.path.read_text()
    assert "broke off" in page
    assert "<b>'" not in page
    assert json.loads(report.path.with_suffix(".json").read_text())["run"]["steps"] >= 4


def test_a_report_that_cannot_be_written_hides_nothing(make_trainer, toy, batches):
    Path("file").write_text("in the way")

    class Breaks(toy):
        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        make_trainer(callbacks=[PrecisionReport("file/report")]).fit(Breaks(), batches(3))
    with pytest.warns(UserWarning, match="`PrecisionReport` wrote no page: `file"):
        make_trainer(callbacks=[PrecisionReport("file/report")]).fit(toy(), batches(3))
    assert Path("file").read_text() == "in the way"


def test_a_resumed_run_has_one_page_of_all_of_it(make_trainer, toy, batches):
    loader = batches(12)
    make = {"callbacks": [PrecisionReport("report")], "log_every_n_steps": 1}
    run = make_trainer(**make, max_epochs=1)
    run.fit(toy(steep={3}), loader)
    run.save_checkpoint("half.ckpt")
    report = PrecisionReport("report")
    make_trainer(callbacks=[report], max_epochs=2).fit(toy(), loader, ckpt_path="half.ckpt", weights_only=True)
    facts = json.loads(report.path.with_suffix(".json").read_text())
    assert (facts["loss_scale"]["attempts"], facts["loss_scale"]["skipped"]) == (24, 1)
    assert [skip["step"] for skip in facts["loss_scale"]["skips"]] == [3]
    assert len(facts["metrics"]["train_loss"]["values"]) == 24


@pytest.mark.parametrize("stage", ["validate", "test"])
def test_an_evaluation_adds_to_the_page_of_its_fit_and_alone_has_its_own(make_trainer, stage):
    report = PrecisionReport("report")
    trainer = make_trainer(callbacks=[report])
    trainer.fit(Clicks(), clicks(512), clicks(256))
    written = report.path
    trainer.save_checkpoint("end.ckpt")
    getattr(trainer, stage)(trainer.lightning_module, clicks(256), ckpt_path="end.ckpt", verbose=False)
    assert report.path == written
    key = "val_loss" if stage == "validate" else "test_loss"
    assert json.loads(written.with_suffix(".json").read_text())["evaluations"][stage][key] > 0
    assert json.loads(written.with_suffix(".json").read_text())["run"]["steps"] == 4
    before = written.read_bytes()
    alone = PrecisionReport("report")
    getattr(make_trainer(callbacks=[alone]), stage)(Clicks(), clicks(256), ckpt_path="end.ckpt", verbose=False)
    assert alone.path.name == f"precision_report_{stage}.html"
    assert "evaluated" in alone.path.read_text()
    assert written.read_bytes() == before


@pytest.mark.parametrize("monitored", [False, True])
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_the_progress_bar_shows_scale_and_skips(package, monitored, capsys):
    library = import_module(package)

    class Toy(library.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return self.layer(batch[0]).float().square().mean() * (1e9 if batch_idx == 1 else 1.0)

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters())

    plugin = import_module(f"{package}.plugins.precision").MixedPrecision(
        "16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=1024.0)
    )
    trainer = library.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False, plugins=[plugin],
        enable_model_summary=False, log_every_n_steps=1,
        callbacks=[PrecisionReport("report"), *[LossScaleMonitor()] * monitored],
    )  # fmt: skip
    trainer.fit(Toy(), DataLoader(TensorDataset(torch.randn(16, 4)), batch_size=4))
    shown = trainer.progress_bar_metrics
    assert (shown["scale"], shown["skipped"]) == (512.0, 1)
    printed = " ".join(capsys.readouterr().out.split())
    assert re.search(r"scale[:=] ?512\.0", printed)
    assert re.search(r"skipped[:=] ?1\.0", printed)


def test_names_are_text_wherever_they_stand(make_trainer):
    hostile = "<script>alert(1)</script>"

    class Odd(Clicks):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.log(f"val_{hostile}", self._loss(batch))

    report = PrecisionReport("report")
    Odd.__name__ = hostile
    fit(make_trainer, report, Odd(), clicks(512))
    page = report.path.read_text()
    assert "<script" not in page
    assert html.escape(hostile) in page


def test_in_bfloat16_and_float32_it_says_what_there_is_not(make_trainer, toy, batches):
    for precision, words in (("bf16-mixed", "bf16-mixed has no loss scale"), ("32-true", "32-true has no loss scale")):
        report = PrecisionReport("report")
        make_trainer(callbacks=[report], precision=precision).fit(toy(), batches(4))
        assert words in report.path.read_text()
        assert not [f for f in report.findings if f["severity"] == "error"]


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_every_section_and_nothing_hangs_over(chromium, tmp_path, make_trainer, width):
    report = PrecisionReport("report")
    monitors = [GradientUnderflowMonitor(every_n_steps=4), KeepInFP32(), GradientClipping(1.0)]
    fit(make_trainer, report, Clicks(), clicks(nan=True), *monitors, scale=2.0**22)
    page = report.path.read_text()
    frame = (  # Chromium's own windows are at least 500 wide, a frame is as wide as it is told to be
        f'<iframe id="f" style="width:{width}px;height:900px;border:0" srcdoc="{html.escape(page)}"></iframe><script>'
        "onload=()=>{const w=f.contentWindow,d=w.document;document.title=[w.innerWidth,d.documentElement.scrollWidth,"
        "[...d.querySelectorAll('h2')].filter(h=>h.getBoundingClientRect().width>100).length,"
        "[...d.querySelectorAll('svg')].filter(s=>s.getBoundingClientRect().width>200).length].join()}</script>"
    )
    (tmp_path / "frame.html").write_text(frame, encoding="utf-8")
    command = [
        str(chromium), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={max(width, 500) + 20},1000", "--dump-dom",
        (tmp_path / "frame.html").as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    inner, needed, headings, charts = map(int, re.search(r"<title>([\d,]+)</title>", done.stdout)[1].split(","))
    assert inner == width
    assert needed <= width
    assert headings == len(SECTIONS)
    assert charts == 6  # scale, learning rate, loss, underflow, gradients, memory


def test_the_factory_plugin_and_a_trainer_of_ones_own_get_a_page_too(toy, batches):
    report = PrecisionReport("report")
    pl.Trainer(
        accelerator="cpu", max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, plugins=mixed_precision("bf16-mixed", "cpu"), callbacks=[report],
    ).fit(toy(), batches(60))  # fmt: skip
    assert report.path.is_file()
