"""`lightning-mp fit | validate | test | predict`: LightningCLI on a recipe, with readable errors and honest ends."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import SIGTERMException
from typing_extensions import override

from lightning_mp.errors import ArtifactError, ConfigurationError, LightningMPError
from lightning_mp.running import checkpoint_options
from lightning_mp.running.command_line import command_line, with_recipes
from lightning_mp.running.noise import without_noise
from lightning_mp.running.recipe_parser import RecipeParser, given_recipes
from lightning_mp.running.refused_setting import placed_refusals, refusal
from lightning_mp.running.report import report_fit, report_precision, report_test
from lightning_mp.running.score_writer import write_scores

_EVALUATES = ("validate", "test", "predict")
_LARGEST_SEED = 2**32 - 1  # of NumPy


class RecipeCLI(LightningCLI):
    """LightningCLI for recipes: any LightningModule with any LightningDataModule, by `class_path`.

    It runs the command in its constructor, as LightningCLI does. `fit` ends with the best checkpoint on the test part,
    beside baselines; `validate`, `test` and `predict` need a checkpoint, and refuse an option that the checkpoint would
    override. A recipe without a logger gets a CSV one in `trainer.default_root_dir`, checkpoints beside it.
    """

    def __init__(self) -> None:
        super().__init__(
            LightningModule,
            LightningDataModule,
            subclass_mode_model=True,
            subclass_mode_data=True,
            parser_class=RecipeParser,
            seed_everything_default=42,
            save_config_callback=None if sys.argv[1:2][0] in _EVALUATES else SaveConfigCallback,
            save_config_kwargs={"overwrite": True},  # without a logger all runs share a folder: the last one's stays
        )

    @override
    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        return super().init_parser(**{"allow_abbrev": False, **kwargs})

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        if isinstance(self.parser, RecipeParser) and isinstance(parser, RecipeParser):
            self.parser.commands = (*self.parser.commands, parser)
        if sys.argv[1:2] == ["predict"]:
            parser.add_argument(
                "--output",
                type=str | None,
                default=None,
                help="Parquet file for the scores; by default `scores.parquet` in `trainer.default_root_dir`.",
            )

        if sys.argv[1:2] == ["validate"]:
            parser.add_argument(
                "--against-fp32",
                type=str | bool,
                nargs="?",
                const=True,
                default=False,
                help="Score the validation part in float32 too and tell what the precision costs; with the checkpoint "
                "of a run trained in float32, that one.",
            )

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        super().parse_arguments(parser, args)
        command = self.config["subcommand"]
        _require_seed(self.config[command].get("seed_everything"))
        checkpoint = self.config[command].get("ckpt_path")  # Lightning reads its settings next
        if checkpoint is not None:
            checkpoint_options.require_checkpoint(checkpoint, evaluates=command in _EVALUATES)

    @override
    def before_instantiate_classes(self) -> None:
        settings = self.config[self.subcommand]
        checkpoint = settings.get("ckpt_path")
        if self.subcommand in _EVALUATES and checkpoint is None:
            raise ConfigurationError(
                f"`{self.subcommand}` needs a checkpoint: a model that was never trained would be measured",
                "pass `--ckpt_path FILE`; `lightning-mp fit` says at its end where its best one is",
            )
        if checkpoint is not None:
            checkpoint_options.require_unchanged(checkpoint, settings.get("model"), sys.argv[2:])
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._terminate)

    @override
    def instantiate_classes(self) -> None:
        with placed_refusals(given_recipes(sys.argv[2:]), sys.argv[2:]):
            super().instantiate_classes()

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        settings = self.config_init[self.subcommand]["trainer"]
        if settings.get("logger") in (None, True) and not settings.get("barebones"):
            folder = settings.get("default_root_dir") or "runs"
            kwargs["logger"] = CSVLogger(folder, name=None) if self.subcommand == "fit" else False
        try:
            return super().instantiate_trainer(**kwargs)
        except (MisconfigurationException, ValueError, TypeError) as error:
            if isinstance(error, LightningMPError):
                raise
            raise _refused(error, "change `trainer` in the recipe, or the `--trainer` option") from error

    def fit(
        self,
        model: LightningModule,
        datamodule: LightningDataModule | None = None,
        ckpt_path: str | None = None,
        weights_only: bool | None = None,
    ) -> None:
        """Train; an error of the disk names the folder that was written to."""
        with _named(self.trainer.log_dir or self.trainer.default_root_dir):
            self.trainer.fit(model, datamodule=datamodule, ckpt_path=ckpt_path, weights_only=weights_only)

    def after_fit(self) -> None:
        """Test the best checkpoint and say where everything is."""
        if self.trainer.received_sigterm:
            raise SIGTERMException
        report_fit(self.trainer, self.model, self.datamodule)

    def after_validate(self) -> None:
        """Set the precision beside float32, where that was asked for."""
        if other := self.config[self.subcommand].get("against_fp32"):
            report_precision(self.trainer, self.model, self.datamodule, self.config[self.subcommand].ckpt_path, other)

    def after_test(self) -> None:
        """Set the model beside the baselines."""
        report_test(self.trainer, self.model, self.datamodule)

    def predict(
        self,
        model: LightningModule,
        datamodule: LightningDataModule | None = None,
        ckpt_path: str | None = None,
        weights_only: bool | None = None,
        return_predictions: bool | None = None,  # noqa: ARG002 (an option of Lightning's; they are written instead)
    ) -> None:
        """Write the scores as Parquet instead of keeping them in memory."""
        output = self.config[self.subcommand].get("output")
        default = Path(self.trainer.default_root_dir) / "scores.parquet"
        path = write_scores(
            self.trainer,
            model,
            datamodule,
            Path(output) if output else default,
            ckpt_path=ckpt_path,
            weights_only=weights_only,
        )
        print(f"scores: {path}")  # noqa: T201 (the answer of the command)

    def _terminate(self, number: int, frame: object) -> None:  # noqa: ARG002  # the signature of a signal handler
        trainer = getattr(self, "trainer", None)
        if trainer is None or not trainer.received_sigterm:  # where Lightning saw it first, it ends the step in order
            raise SystemExit(143)


def main(argv: list[str]) -> int:
    """Run one command on a recipe.

    Args:
        argv: The command (`fit`, `validate`, `test` or `predict`), then its arguments. `--config` takes the path of a
            recipe or the name of a shipped one.

    Returns:
        The exit code: 0 done, 2 a refused setting, 130 interrupted, 143 terminated.

    Raises:
        LightningMPError: What was asked for cannot be done; its `exit_code` is the command's.
        SystemExit: The parser ends the command: 0 after `--help`, 2 after one line on what it refused.
    """
    with command_line([argv[0], *with_recipes(argv[1:])]), _own_signals(), without_noise():
        try:
            cli = RecipeCLI()
        except SIGTERMException:
            return 143
        except MisconfigurationException as error:
            raise _refused(error, "change the recipe, or the option") from error
        except ValueError as error:
            ours = refusal(error)
            if ours is not None:
                raise ours from None
            if str(error).startswith("Invalid "):  # as all optimizers of torch put it
                raise _refused(error, "change the `optimizer` of the recipe") from error
            raise
        except SystemExit as end:
            if isinstance(end.__context__, KeyboardInterrupt):  # Lightning turns it into an exit with code 1
                return 130
            raise
    return 143 if cli.trainer.received_sigterm else 0


def _require_seed(seed: int | bool | None) -> None:
    if seed is not None and not 0 <= seed <= _LARGEST_SEED:
        raise ConfigurationError(
            f"`seed_everything` is {seed:,}; a seed is 0 to {_LARGEST_SEED:,}", "take a smaller one, such as 42"
        )


def _refused(error: Exception, hint: str) -> ConfigurationError:
    return ConfigurationError(" ".join(str(error).split()), hint)


@contextmanager
def _named(folder: str) -> Iterator[None]:
    """Writing a checkpoint to a full disk raises an error that names no file, or one of torch's container format."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        if isinstance(error.__context__, (KeyboardInterrupt, SystemExit)):  # a signal in the middle of a save
            raise error.__context__ from None
        full = "PytorchStreamWriter" in str(error) or "unexpected pos" in str(error)
        nameless = isinstance(error, OSError) and error.strerror is not None and error.filename is None
        if isinstance(error, LightningMPError) or not (full or nameless):
            raise
        what = error.strerror if isinstance(error, OSError) else "a file could not be written whole"
        raise ArtifactError(
            f"`{folder}`: {what}", "make room on the disk (`df -h`); what was written before is whole"
        ) from error


@contextmanager
def _own_signals() -> Iterator[None]:
    """Put the handlers back: ours, and that of SIGINT, which Lightning ignores once it has been pressed."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)
