"""How much does the graph matter? One algorithm, one partition, several graphs.

More neighbours mix faster and cost more bytes.

    python examples/compare_topologies.py
"""

import parley

AGENTS = 8
GRAPHS = ["ring", "torus", "hypercube", "exponential", "full"]


def main(epochs: int = 15) -> dict[str, dict[str, float]]:
    print(f"{'graph':<12} {'gap':>6} {'own, %':>7} {'averaged, %':>12} {'MB sent':>8}")
    found = {}
    for name in GRAPHS:
        summary = parley.train(
            data="digits",
            partition="skew:1",
            agents=AGENTS,
            topology=name,
            algorithm=parley.DPSGD(),
            epochs=epochs,
            evaluate_every=epochs,
            progress=False,
        ).summary
        gap = getattr(parley, name)(AGENTS).spectral_gap
        print(
            f"{name:<12} {gap:6.3f} {100 * summary['accuracy_own']:7.1f} "
            f"{100 * summary['accuracy_mean_model']:12.1f} {summary['bytes_models'] / 1e6:8.2f}"
        )
        found[name] = summary
    return found


if __name__ == "__main__":
    main()
