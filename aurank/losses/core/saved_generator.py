"""Random numbers of a loss: drawn on the host, and saved with it."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from aurank.errors import UserError
from aurank.losses.core.common import to_device_of


class SavedGenerator(nn.Module):
    """A random generator on the host whose position in its sequence is part of `state_dict`."""

    def __init__(self, seed: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise UserError(f"seed must be a whole number, got {seed!r}")
        if generator is not None and (not isinstance(generator, torch.Generator) or generator.device.type != "cpu"):
            raise UserError(f"generator must be a torch.Generator on the CPU, got {generator!r}: or give a seed")
        self.generator = torch.Generator().manual_seed(seed) if generator is None else generator

    def normal(self, shape: Sequence[int], *, like: Tensor) -> Tensor:
        """Return numbers from N(0, 1) with the other tensor's type, on its device."""
        numbers = torch.randn(*shape, generator=self.generator, dtype=torch.float32, device="cpu")
        return to_device_of(like, numbers).to(like.dtype)

    def uniform(self, shape: Sequence[int], *, like: Tensor) -> Tensor:
        """Return numbers from [0, 1) with the other tensor's type, on its device."""
        numbers = torch.rand(*shape, generator=self.generator, dtype=torch.float32, device="cpu")
        return to_device_of(like, numbers).to(like.dtype)

    def on_device(self, device: torch.device) -> torch.Generator | None:
        """Return a generator on the device for draws too many to send there, seeded by the next number here."""
        if device.type == "meta":
            return None
        ahead = torch.Generator()
        ahead.set_state(self.generator.get_state())
        return torch.Generator(device).manual_seed(int(torch.randint(2**62, (), generator=ahead)))

    def advance(self) -> None:
        """Let `on_device` go on to the next number."""
        torch.randint(2**62, (), generator=self.generator)

    def get_extra_state(self) -> Tensor:
        return self.generator.get_state()

    def set_extra_state(self, state: Tensor) -> None:
        self.generator.set_state(state.cpu())
