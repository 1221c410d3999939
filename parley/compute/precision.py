"""Which numbers torch multiplies: float32, or bfloat16 where that is faster.

With `bf16`, torch's autocast computes products and convolutions of the forward and backward pass in
bfloat16, which keeps the range of float32 and about three of its digits. Parameters, gradients,
losses, messages and all sums over agents remain float32, and so does evaluation.
"""

import torch

from parley.compute import kernels
from parley.errors import BadValue

FULL, BF16 = "full", "bf16"
FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""How processors announce that they multiply bfloat16: x86 the first two, ARM the last."""


def check_fits(precision: str, dtype: str, engine: str) -> None:
    """Refuses bfloat16 where something else that was asked for rules it out."""
    if precision == FULL:
        return
    if dtype != "float32":
        because = f"dtype {dtype} asks for more digits, not fewer"
        raise BadValue("precision", precision, f"{FULL}, or bf16 with dtype float32", because)
    if engine in ("fused", "stacked"):
        because = f"the engine {engine} computes in float32 only"
        raise BadValue("precision", precision, f"{FULL}, or engine auto, loop or vmap", because)


def check_device(precision: str, device: torch.device) -> None:
    """Refuses bfloat16 where it would be emulated, and slower than float32."""
    if precision == BF16 and (why := without_bf16(device)):
        raise BadValue("precision", precision, f"{FULL} on this machine", why)


def without_bf16(device: torch.device) -> str:
    """Why nothing is gained from bfloat16 on a device; nothing if something is."""
    if device.type == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return ""
        return f"{torch.cuda.get_device_name(device)} has no bfloat16 arithmetic"
    if FLAGS.intersection(kernels.processor().split()):
        return ""
    named = "neither avx512_bf16 nor amx_bf16, nor ARM's bf16"
    return f"this processor has no bfloat16 arithmetic: {named}"
