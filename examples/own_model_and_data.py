"""Three hospitals, one model: your own `nn.Module` and your own data, one dataset per agent.

The patients differ from hospital to hospital: each sees mostly one of three diseases. Alone, a
hospital learns little about the others' diseases; pooling the records is not allowed.

    python examples/own_model_and_data.py
"""

import torch
from torch import Tensor, nn

import parley

HOSPITALS, FEATURES, DISEASES = 3, 8, 3


class Diagnosis(nn.Module):
    """From measurements to diseases. Any nn.Module works."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, DISEASES)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def patients(shares: list[float], n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Made-up records: every disease shifts the measurements its own way."""
    signs = torch.randn(DISEASES, FEATURES, generator=torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(seed)
    disease = torch.multinomial(torch.tensor(shares), n, replacement=True, generator=generator)
    noise = torch.randn(n, FEATURES, generator=generator)
    return signs[disease] + noise, disease


def accuracy(model: nn.Module, records: tuple[Tensor, Tensor]) -> float:
    measurements, disease = records
    with torch.no_grad():
        return float((model(measurements).argmax(1) == disease).float().mean())


def main(epochs: int = 15) -> dict[str, float]:
    data = [
        patients([0.98, 0.01, 0.01], 300, seed=1),
        patients([0.01, 0.98, 0.01], 200, seed=2),
        patients([0.01, 0.01, 0.98], 250, seed=3),
    ]
    test = patients([1 / 3, 1 / 3, 1 / 3], 1000, seed=4)

    def train(records: list[tuple[Tensor, Tensor]]) -> parley.Result:
        return parley.train(
            model=Diagnosis,
            data=records,
            test=test,
            topology="full",
            algorithm=parley.NGC(alpha=1.0, momentum=0.5),
            lr=0.05,
            epochs=epochs,
            progress=len(records) > 1,
            evaluate_every=5,
        )

    alone = [accuracy(train([records]).model(), test) for records in data]
    together = train(data)
    # The shared model is an ordinary module: save it, serve it, fine-tune it.
    found = {"alone": sum(alone) / HOSPITALS, "together": accuracy(together.model(), test)}
    sent = together.summary["bytes_models"] + together.summary["bytes_cross_gradients"]
    print(f"each hospital alone, mean: {found['alone']:.1%}")
    print(f"together:                  {found['together']:.1%}")
    print(f"sent by each hospital:     {sent / 1e6:.2f} MB, and no patient records")
    return found


if __name__ == "__main__":
    main()
