"""Normalising, cropping and flipping images, for training and for testing.

Axes: n samples, c h w channels, rows, columns."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Transform:
    """What happens to raw inputs on their way into a model: augmentation, then normalisation.

    Augmentation is for training only and works on raw values, so that the border of a padded crop
    is black (0 before normalisation).
    """

    mean: tuple[float, ...] = ()
    """Per channel, for inputs scaled to 0..1; empty leaves values unchanged."""
    std: tuple[float, ...] = ()
    """Per channel."""
    flip: bool = False
    """Whether half of the training images are mirrored left to right."""
    crop_padding: int = 0
    """Training images are padded by this many pixels and cropped to their size at random."""
    resized_crop: int = 0
    """Instead, a random part of each training image (8 to 100 % of its area, aspect ratio 3:4 to
    4:3) is scaled to a square with sides of this many pixels."""

    def __post_init__(self) -> None:
        if self.crop_padding and self.resized_crop:
            raise ValueError("crop_padding and resized_crop cannot be combined")

    @property
    def augments(self) -> bool:
        """Whether training inputs are changed at random."""
        return self.flip or self.crop_padding > 0 or self.resized_crop > 0

    def normalise(self, inputs: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Raw inputs [..., c, h, w] as a model expects them; uint8 is scaled to 0..1.

        >>> Transform((0.5,), (0.5,)).normalise(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[-1.,  1.]]]])
        """
        if inputs.dtype in (torch.int32, torch.int64):  # token IDs are names, not magnitudes
            return inputs.to(torch.int64)
        x = inputs.to(dtype)
        if not self.mean:
            return x * _scale(inputs.dtype) if inputs.dtype == torch.uint8 else x
        factor, shift = self.line(inputs.dtype, dtype, x.device)
        return (x * factor if x is inputs else x.mul_(factor)).sub_(shift)

    def line(
        self, raw: torch.dtype, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> tuple[Tensor, Tensor]:
        """Factor and shift for each channel, [c, 1, 1] or [1, 1, 1]: one multiplication and one
        subtraction per value make (value · scale - mean) / std."""
        mean, std = self.mean or (0.0,), self.std or (1.0,)
        return _line(mean, std, _scale(raw), torch.device(device), dtype)

    def draw(
        self, rng: np.random.Generator, n: int, size: tuple[int, int] = (0, 0)
    ) -> NDArray[np.int64]:
        """The random numbers that augment n images of this size (height, width).

        [n, 3]: flip or not, top, left; for resized crops [n, 5]: also height and width of the part.
        """
        if self.resized_crop:
            flip = rng.integers(0, 2 if self.flip else 1, size=(n, 1))
            return np.concatenate([flip, _random_parts(rng, n, *size)], axis=1)
        place = 2 * self.crop_padding + 1
        return rng.integers(0, [2 if self.flip else 1, place, place], size=(n, 3))

    def augment(self, inputs: Tensor, draws: NDArray[np.int64]) -> Tensor:
        """Mirrors and crops raw images [n, c, h, w], each by its own row of draws."""
        flip, top, left, *size = torch.from_numpy(draws).to(inputs.device).unbind(1)
        x = inputs
        if self.resized_crop:
            x = _resized_parts(x, top, left, size[0], size[1], self.resized_crop)
        if self.flip:
            x = torch.where(flip.bool()[:, None, None, None], x.flip(-1), x)
        if self.crop_padding:
            height, width = x.shape[-2:]
            x = functional.pad(x, [self.crop_padding] * 4)
            windows = x.unfold(2, height, 1).unfold(3, width, 1)  # [n, c, top, left, h, w], a view
            x = windows[torch.arange(len(x), device=x.device), :, top, left]
        return x


def _scale(raw: torch.dtype) -> float:
    """What brings raw values to 0..1."""
    return 1 / 255 if raw == torch.uint8 else 1.0


@cache
def _line(
    mean: tuple[float, ...],
    std: tuple[float, ...],
    scale: float,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Factor and shift that normalise, per channel."""
    mean_C11, std_C11 = (torch.tensor(v, dtype=torch.float64)[:, None, None] for v in (mean, std))
    return (scale / std_C11).to(device, dtype), (mean_C11 / std_C11).to(device, dtype)


def _random_parts(rng: np.random.Generator, n: int, height: int, width: int) -> NDArray[np.int64]:
    """[n, 4]: top, left, height, width of random parts, drawn as torchvision draws them.

    Area and aspect ratio are drawn up to ten times until the part fits into the image; then the
    largest central part whose aspect ratio is allowed is taken.
    """
    tries = 10
    area = height * width * rng.uniform(0.08, 1.0, size=(n, tries))
    ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), size=(n, tries)))
    place = rng.random(size=(n, 2))
    widths = np.rint(np.sqrt(area * ratio)).astype(np.int64)
    heights = np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.argmax(axis=1)
    rows = np.arange(n)
    w, h = widths[rows, first], heights[rows, first]
    top = (place[:, 0] * (height - h + 1)).astype(np.int64)
    left = (place[:, 1] * (width - w + 1)).astype(np.int64)
    central_w = min(width, round(height * 4 / 3))
    central_h = min(height, round(width * 4 / 3))
    central = [(height - central_h) // 2, (width - central_w) // 2, central_h, central_w]
    some_fit = fits.any(axis=1, keepdims=True)
    return np.where(some_fit, np.stack([top, left, h, w], axis=1), central)


def _resized_parts(
    images: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor, side: int
) -> Tensor:
    """Every image's part, scaled to side x side as Pillow does it: bilinear, without aliasing.

    Rows, then columns are one matrix product each. Pillow's fixed-point weights in doubles leave
    nothing to rounding, so the result does not depend on the batch an image is in.
    """
    is_bytes = images.dtype == torch.uint8
    across = _resize_weights(left, width, images.shape[-1], side, is_bytes)  # [n, side, w]
    down = _resize_weights(top, height, images.shape[-2], side, is_bytes)  # [n, side, h]
    if not is_bytes:
        x = images @ across[:, None].transpose(-1, -2).to(images.dtype)
        return down[:, None].to(images.dtype) @ x

    def rounded(x: Tensor) -> Tensor:
        return (x + 0.5).floor_().clamp_(0, 255)

    lines = images.double().flatten(1, 2)  # [n, c·h, w]: one product for all channels
    x = rounded(lines @ across.transpose(-1, -2)).unflatten(1, images.shape[1:3])
    return rounded(down[:, None] @ x).to(torch.uint8)


def _resize_weights(start: Tensor, size: Tensor, whole: int, side: int, fixed: bool) -> Tensor:
    """[n, side, whole]: how much of each pixel of a line is in each pixel of its resized part."""
    start, size = start.double()[:, None, None], size.double()[:, None, None]
    step = size / side
    reach = step.clamp(min=1)
    middle = (torch.arange(side, device=start.device).double()[:, None] + 0.5) * step
    pixel = torch.arange(whole, device=start.device).double() - start  # [n, 1, whole]
    weight = (1 - ((pixel - middle + 0.5) / reach).abs()).clamp_(min=0)
    weight *= (pixel >= 0) & (pixel < size)
    weight /= weight.sum(-1, keepdim=True)
    return (weight * 2**22 + 0.5).floor_() / 2**22 if fixed else weight


def standardise(inputs: Tensor) -> Transform:
    """Normalisation by the mean and standard deviation per channel of images [n, c, h, w]."""
    scale = 255 if inputs.dtype == torch.uint8 else 1
    mean, std = [], []
    for channel in inputs.unbind(
        1
    ):  # one at a time, since doubles take eight times the memory of bytes
        values = channel.double() / scale
        mean.append(round(values.mean().item(), 6))
        # A constant channel carries no information: leave its deviation alone.
        std.append(round(values.std(correction=0).item(), 6) or 1.0)
    return Transform(tuple(mean), tuple(std))
