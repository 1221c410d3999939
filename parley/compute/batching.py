"""Augmented images into batches by one compiled pass over memory, where that is possible.

The same numbers, to the bit, as `parley.data.batches.gathered`, which does everything else: without
augmentation there is nothing to gain, as both are as fast as memory.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.compute import kernels
from parley.data import batches
from parley.data.transforms import Transform


def gathered(
    inputs: Tensor,
    index: NDArray[np.int64],
    transform: Transform,
    draws: NDArray[np.int64] | None,
    dtype: torch.dtype,
) -> Tensor:
    """Some of the inputs, augmented by their draws if there are any, and normalised."""
    if draws is None or not _compiled(inputs, transform, dtype):
        return batches.gathered(inputs, index, transform, draws, dtype)
    if index.size and not (index.min() >= 0 and index.max() < len(inputs)):
        raise IndexError(f"samples {index.min()} to {index.max()} of {len(inputs)}")
    if draws.shape != (len(index), 3):
        raise ValueError(f"draws {draws.shape} for {len(index)} images")
    channels, rows, columns = inputs.shape[1:]
    factor, shift = (
        t.expand(channels, 1, 1).contiguous() for t in transform.line(torch.uint8, dtype)
    )
    index, draws = map(np.ascontiguousarray, (index, draws))
    plane = torch.empty(rows * columns, dtype=torch.uint8)
    made = torch.empty(len(index), channels, rows, columns)
    kernels.library().parley_batch(
        *(inputs.data_ptr(), channels, rows, columns, len(index), index.ctypes.data),
        *(draws.ctypes.data, transform.crop_padding),
        *(factor.data_ptr(), shift.data_ptr(), plane.data_ptr(), made.data_ptr()),
    )
    return made


def _compiled(inputs: Tensor, transform: Transform, dtype: torch.dtype) -> bool:
    """Whether the kernel can take these: images as bytes, in memory."""
    return (
        isinstance(inputs, Tensor)
        and inputs.dtype == torch.uint8
        and inputs.is_cpu
        and inputs.ndim == 4
        and inputs.is_contiguous()
        and dtype == torch.float32
        and not transform.resized_crop
        and len(transform.mean) in (0, 1, inputs.shape[1])
        and kernels.available()
    )
