"""Buffers that follow from a module's options: float32 whatever the model is converted to."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class KeepsFloat32(nn.Module):
    """A module with float32 constants, which are not in its state dict, and parameters.

    `half()`, `to(bfloat16)` and their like move them and leave their type alone: angles of
    a rounded theta are wrong by radians at far positions. `to_empty` makes the constants anew.
    """

    _float32_parameters: tuple[str, ...] = ()

    def _constants(self) -> dict[str, Tensor]:
        """The constants by name, on the CPU."""
        raise NotImplementedError

    def _register_constants(self) -> None:
        for name, value in self._constants().items():
            self.register_buffer(name, value, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True):
        before = {name: self._parameters[name] for name in self._float32_parameters}
        kept = {name: p.detach().clone() for name, p in before.items() if p is not None}
        super()._apply(fn, recurse)
        for name, value in kept.items():
            parameter = self._parameters[name]
            if parameter is not None and parameter.dtype != torch.float32:
                parameter.data = value.to(parameter.device)
        for name, constant in self._constants().items():
            buffer = self._buffers[name]
            device = "cpu" if buffer is None else buffer.device
            self._buffers[name] = constant.to(device)
        return self
