"""A model as predictions and emulations see it: bytes and seconds by layer, in forward order."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from p3.engine import P3Error


class LayerProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One module with parameters of its own: elements of its tensors, and seconds of its passes."""

    name: str
    numels: tuple[int, ...]
    forward_s: float
    backward_s: float

    @property
    def numel(self) -> int:
        """Elements in all tensors."""
        return sum(self.numels)


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model's layers in forward order, for one iteration of `samples` samples on one node.

    `source` says where the numbers come from; `itemsize` is bytes an element.
    """

    name: str
    source: str
    samples: int
    itemsize: int
    layers: tuple[LayerProfile, ...]

    @property
    def numel(self) -> int:
        """Trained elements of the whole model."""
        return sum(layer.numel for layer in self.layers)

    @property
    def payload_bytes(self) -> int:
        """Bytes of all gradients."""
        return self.numel * self.itemsize

    @property
    def compute_s(self) -> float:
        """Seconds of an iteration's forward and backward pass without any network."""
        return sum(layer.forward_s + layer.backward_s for layer in self.layers)

    def shrunk(self, factor: int) -> Profile:
        """The same times with tensors `factor` times smaller, of 1 element at least."""
        layers = tuple(
            replace(
                layer, numels=tuple(max(min(numel, 1), numel // factor) for numel in layer.numels)
            )
            for layer in self.layers
        )
        return replace(self, layers=layers)

    def slowed(self, factor: float) -> Profile:
        """The same tensors with times `factor` times longer."""
        layers = tuple(
            replace(layer, forward_s=factor * layer.forward_s, backward_s=factor * layer.backward_s)
            for layer in self.layers
        )
        return replace(self, layers=layers)

    def write(self, path: Path) -> None:
        """As JSON. OSError when `path` cannot be written."""
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")


def read_profile(path: Path) -> Profile:
    """The profile in a file. Raises P3Error that says what is wrong with it, and where."""
    try:
        profile = msgspec.json.decode(path.read_bytes(), type=Profile)
    except OSError as error:
        raise P3Error(f"{path}: {error.strerror}; make a profile with scripts/profile") from error
    except msgspec.DecodeError as error:
        raise P3Error(f"{path} is no profile: {error}; make one with scripts/profile") from error
    if reason := _fault(profile):
        raise P3Error(f"{path}: {reason}; make a profile with scripts/profile")
    return profile


def _fault(profile: Profile) -> str | None:
    if not profile.layers:
        return "it has no layers"
    if profile.samples < 1 or profile.itemsize < 1:
        return "samples and itemsize are 1 or more"
    for layer in profile.layers:
        seconds = (layer.forward_s, layer.backward_s)
        if not all(0 <= value < float("inf") for value in seconds):
            return f"layer {layer.name}: seconds are finite and not negative"
        if not layer.numels or min(layer.numels) < 0:
            return f"layer {layer.name}: every tensor has 0 elements or more"
    return None
