"""Lightning, HF's Trainer, Accelerate and timm's EMA save and resume a model with every loss inside, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, load_file, save
from testing.stateful import EVERY, FURTHER_STATEFUL, KEYED, SAMPLES, WIDTH, same_state
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from aurank.losses import LOSSES, EMC2Loss, NegativeCacheLoss

pytestmark = pytest.mark.slow

STEPS, SAVED = 3, 2
ROWS = 12  # of a batch: two of each of six labels

# A name of a submodule holds no dot and, for some frameworks, no space.
MAKERS: dict[str, Callable[..., nn.Module]] = {
    name.replace(" ", "_"): EVERY[name] for name in {**LOSSES, **FURTHER_STATEFUL}
}
# An average of the weights copies the model before its first batch, so that shapes have to be known by then.
OF_KNOWN_SHAPE = {
    **MAKERS,
    "emc2": lambda: EMC2Loss(SAMPLES, embedding_size=WIDTH, **KEYED),
    "negative_cache": lambda: NegativeCacheLoss(SAMPLES, embedding_size=WIDTH, **KEYED),
}


class Rows(Dataset[dict[str, Tensor]]):
    """Random rows, of which each batch in order has two of each label."""

    def __len__(self) -> int:
        return STEPS * ROWS

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        random = torch.Generator().manual_seed(row)
        return {"pixels": torch.randn(8, generator=random), "labels": torch.tensor(row * 5 % 6)}


class Model(nn.Module):
    """An encoder with all losses inside, called as HF's Trainer does."""

    def __init__(self, makers: dict[str, Callable[..., nn.Module]] = MAKERS) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(8, WIDTH)
        self.losses = nn.ModuleDict({name: make() for name, make in makers.items()})

    def forward(self, pixels: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The sum of all losses."""
        embeddings = self.encoder(pixels)
        return {"loss": torch.stack([loss(embeddings, labels) for loss in self.losses.values()]).sum()}


def step(model: nn.Module, optimiser: torch.optim.Optimizer, batch: dict[str, Tensor]) -> None:
    optimiser.zero_grad()
    model(**batch)["loss"].backward()
    optimiser.step()


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


@pytest.fixture(scope="module")
def trained() -> dict[str, Tensor]:
    """Weights and state after an uninterrupted run, without any framework."""
    model = Model()
    optimiser = adam(model)
    for batch in DataLoader(Rows(), ROWS):
        step(model, optimiser, batch)
    return model.state_dict()


def test_accelerate_saves_and_resumes(trained: dict[str, Tensor], tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    batches = list(DataLoader(Rows(), ROWS))
    for first, last in ((0, SAVED), (SAVED, STEPS)):
        accelerator = accelerate.Accelerator(cpu=True)
        made = Model()
        model, optimiser = accelerator.prepare(made, adam(made))
        if first:
            accelerator.load_state(str(tmp_path))
        for batch in batches[first:last]:
            step(model, optimiser, batch)
        if not first:
            accelerator.save_state(str(tmp_path))
            assert same_state(load_file(tmp_path / "model.safetensors"), dict(made.state_dict()))
    assert same_state(made.state_dict(), trained)


def test_hf_s_trainer_saves_and_resumes(trained: dict[str, Tensor], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    class InOrder(transformers.Trainer):  # type: ignore[misc, name-defined]
        def _get_train_sampler(self, *_: object) -> Any:
            return torch.utils.data.SequentialSampler(Rows())

        def create_optimizer(self, *_: object) -> torch.optim.Optimizer:
            self.optimizer = self.optimizer or adam(self.model)
            return self.optimizer

    def trainer(steps: int) -> Any:
        arguments = transformers.TrainingArguments(
            str(tmp_path),
            per_device_train_batch_size=ROWS,
            max_steps=steps,
            save_steps=SAVED,
            lr_scheduler_type="constant",
            max_grad_norm=0,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            remove_unused_columns=False,
            dataloader_pin_memory=False,
        )
        return InOrder(Model(), arguments, train_dataset=Rows())

    trainer(SAVED).train()
    resumed = trainer(STEPS)
    resumed.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{SAVED}"))
    assert same_state(dict(resumed.model.state_dict()), dict(trained))


@pytest.mark.filterwarnings("ignore")  # of Lightning itself: workers, deprecated calls
def test_lightning_saves_and_resumes(trained: dict[str, Tensor], tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def train_dataloader(self) -> DataLoader[dict[str, Tensor]]:
            rows = range(self.current_epoch * ROWS, (self.current_epoch + 1) * ROWS)  # it resumes whole epochs
            return DataLoader(Subset(Rows(), rows), ROWS)

        def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
            return self.model(**batch)["loss"]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adam(self)

    def fit(epochs: int, path: Path | None) -> Any:
        module = Module()
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            reload_dataloaders_every_n_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, ckpt_path=path)
        return trainer, module.model

    first, _ = fit(SAVED, None)
    first.save_checkpoint(tmp_path / "last.ckpt")
    _, model = fit(STEPS, tmp_path / "last.ckpt")
    assert same_state(model.state_dict(), trained)


def test_timm_s_average_of_the_weights_is_updated_saved_and_resumed() -> None:
    from timm.utils import ModelEmaV3

    model = Model(OF_KNOWN_SHAPE)
    optimiser, average = adam(model), ModelEmaV3(model, decay=0.5)
    resumed = ModelEmaV3(Model(OF_KNOWN_SHAPE), decay=0.5)
    for place, batch in enumerate(DataLoader(Rows(), ROWS)):
        before = average.module.encoder.weight.clone()
        step(model, optimiser, batch)
        for each in (average, resumed)[: 1 + (place >= SAVED)]:
            each.update(model)
        torch.testing.assert_close(average.module.encoder.weight, (before + model.encoder.weight) / 2)
        if place + 1 == SAVED:
            resumed.load_state_dict(load(save(average.state_dict())))
    assert same_state(resumed.state_dict(), average.state_dict())
