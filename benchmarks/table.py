"""Measured results as Markdown."""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from benchmarks.cases import RULES
from benchmarks.own import WIDTHS

MODELS = {
    "lenet5": "LeNet-5",
    "cnn5": "5-layer CNN",
    "vgg11": "VGG-11",
    "resnet20": "ResNet-20",
    "mobilenetv2": "MobileNet-V2",
    **{
        name: f"an own residual network, {wide}, {half} and {quarter} channels"
        for name, (wide, half, quarter) in WIDTHS.items()
    },
    "resnet18": "ResNet-18, 224×224",
    "bert-mini": "BERT-mini, 128 tokens",
    "mlp": "MLP",
    "logistic": "logistic regression",
}

Entry = dict[str, Any]


def render(results: dict[str, Any]) -> str:
    """All tables for which there are results."""
    cases = sorted(results["cases"].values(), key=_place)
    memory = list(results["memory"].values())
    paper = [entry for entry in cases if entry["case"]["model"] != "logistic"]
    growth = [entry for entry in cases if entry["case"]["model"] == "logistic"]
    rates = _gemm_rates(cases)
    starts = [list(same) for _, same in groupby(cases, lambda entry: _place(entry)[:2])]
    parts = [
        _section("Milliseconds per step", STEPS, [_step_row(e, rates) for e in paper]),
        _section("Growth with the number of agents", GROWTH, [_growth_row(e) for e in growth]),
        _section("Codec and projection", SHARES, [_share_row(e) for e in cases if "shares" in e]),
        _section("Start-up, seconds", START, [_start_row(same) for same in starts]),
        _section("Memory", MEMORY, [_memory_row(entry) for entry in memory]),
        _machines([*cases, *memory], rates),
    ]
    return "\n\n".join(part for part in parts if part)


def side_by_side(records: dict[str, dict[str, Entry]]) -> str:
    """Networks by kind of processor: the textbook's time as a multiple of Parley's, and Parley's
    as a multiple of the limit."""
    if not records:
        return ""
    head = [
        "",
        *(
            f"{kind}, {what}"
            for kind in records
            for what in ("textbook / Parley", "Parley / limit")
        ),
    ]
    rows = sorted({tuple(_place(e)) for cases in records.values() for e in cases.values()})
    lines = [_row(head), _row(["---", *(["---:"] * (len(head) - 1))])]
    for row in rows:
        cells, name = [], ""
        for cases in records.values():
            rates = _gemm_rates(list(cases.values()))
            entry = next((e for e in cases.values() if _place(e) == row), None)
            cells += (
                ["", ""] if entry is None else [_ratio(entry, "textbook"), _limit(entry, rates)]
            )
            if entry is not None:
                name = f"{_name(entry)[0]}, {entry['case']['agents']} agents"
                batch = entry["case"]["batch"]
                name += "" if batch == 32 else f", batches of {batch}"
        lines.append(_row([name, *cells]))
    made = [_machines(list(c.values()), _gemm_rates(list(c.values()))) for c in records.values()]
    return "\n".join([*lines, "", *made])


STEPS = [
    "model",
    "agents",
    "algorithm",
    "textbook",
    "one process each",
    "Parley",
    "limit, 2 cores",
    "textbook / Parley",
    "one process each / Parley",
    "Parley / limit",
]
GROWTH = [
    "agents",
    "algorithm",
    "textbook, ms",
    "one process each, ms",
    "Parley, ms",
    "Parley, µs per edge",
    "textbook / Parley",
    "one process each / Parley",
]
SHARES = ["model", "agents", "algorithm", "codec", "projection", "of which the QP"]
START = [
    "model",
    "agents",
    "textbook",
    "one process each",
    "Parley",
    "of which processes and imports",
    "load",
    "first step",
]
MEMORY = ["model", "agents", "D-PSGD", "NGC α=0", "NGC α=1", "NGC α=1 - D-PSGD"]


def _place(entry: Entry) -> tuple[int, int, int]:
    case = entry["case"]
    return list(MODELS).index(case["model"]), case["agents"], list(RULES).index(case["rule"])


def _section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [f"### {title}", "", _row(head), _row("---" for _ in head), *map(_row, rows)]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _name(entry: Entry) -> list[str]:
    case = entry["case"]
    return [MODELS[case["model"]], f"{case['agents']:,}", RULES[case["rule"]]]


def _best(entry: Entry, family: str) -> tuple[str, Entry] | None:
    members = [(n, c) for n, c in entry["contestants"].items() if n.startswith(family)]
    return min(members, key=lambda member: member[1]["median"], default=None)


def _milliseconds(entry: Entry, family: str) -> str:
    best = _best(entry, family)
    if best is None:
        return ""
    name, found = best
    how = name.removeprefix(family).removeprefix(", ")
    low, high = (q * 1e3 for q in found["quartiles"])
    text = f"{found['median'] * 1e3:.3g} ({low:.3g} to {high:.3g})"
    return f"{text}, {how}" if how else text


def _ratio(entry: Entry, family: str) -> str:
    ratio = entry["ratios"].get(f"{family} / parley")
    if ratio is None:
        return ""
    low, high = ratio["quartiles"]
    return f"**{ratio['median']:.3g}** ({low:.3g} to {high:.3g})"


def _gemm_rates(cases: Sequence[Entry]) -> dict[str, float]:
    """The best that was ever measured on one core of each kind of machine: others were busy at
    other times."""
    rates: dict[str, float] = {}
    for entry in cases:
        cpu = entry["machine"]["cpu"]
        rates[cpu] = max(rates.get(cpu, 0.0), entry["gemm_flops_per_second"])
    return rates


def _step_row(entry: Entry, rates: dict[str, float]) -> list[str]:
    return [
        *_name(entry),
        *(_milliseconds(entry, f) for f in ("textbook", "one process each", "parley")),
        f"{_two_cores(entry, rates) * 1e3:.3g}",
        *(_ratio(entry, f) for f in ("textbook", "one process each")),
        _limit(entry, rates),
    ]


def _two_cores(entry: Entry, rates: dict[str, float]) -> float:
    """Seconds that matrix products of the same size would take on both cores."""
    return float(entry["flops"] / rates[entry["machine"]["cpu"]] / 2)


def _limit(entry: Entry, rates: dict[str, float]) -> str:
    """Parley's time as a multiple of the limit."""
    best = _best(entry, "parley")
    assert best is not None
    return f"{best[1]['median'] / _two_cores(entry, rates):.3g}"


def _growth_row(entry: Entry) -> list[str]:
    best = _best(entry, "parley")
    assert best is not None
    edges = 2 * entry["case"]["agents"]
    return [
        *_name(entry)[1:],
        *(_milliseconds(entry, f) for f in ("textbook", "one process each", "parley")),
        f"{best[1]['median'] / edges * 1e6:.3g}",
        *(_ratio(entry, f) for f in ("textbook", "one process each")),
    ]


def _share_row(entry: Entry) -> list[str]:
    shares = (entry["shares"][name] for name in ("codec", "projection", "qp"))
    return [*_name(entry), *(f"{share:.1%}" if share else "" for share in shares)]


def _start_row(entries: Sequence[Entry]) -> list[str]:
    """Of one model and number of agents. Rules share processes, and the first to be measured makes
    the others' caches, so the slowest of each part is what a user sees on a new machine."""

    def parts(family: str) -> list[float]:
        found = [
            contestant["start_up"]
            for entry in entries
            for name, contestant in entry["contestants"].items()
            if name.startswith(family)
        ]
        if not found:
            return []
        return [max(start[part] for start in found) for part in found[0]]

    families = [parts(family) for family in ("textbook", "one process each", "parley")]
    totals = [f"{sum(family):.3g}" if family else "" for family in families]
    return [*_name(entries[0])[:2], *totals, *(f"{part:.3g}" for part in families[-1])]


def _memory_row(entry: Entry) -> list[str]:
    case, peak = entry["case"], entry["growth_in_models"]
    hidden = f", {case['hidden']} units" if case["model"] == "mlp" else ""
    return [
        f"{MODELS[case['model']]}{hidden}",
        f"{case['agents']:,}",
        *(f"{peak[rule]:.2f}" for rule in ("dpsgd", "ngc0", "ngc1")),
        f"{peak['ngc1'] - peak['dpsgd']:+.2f}",
    ]


def _machines(entries: Sequence[Entry], rates: dict[str, float]) -> str:
    """Where and when: one line for each machine and version of the code."""
    seen: dict[str, list[Entry]] = {}
    for entry in entries:
        m = entry["machine"]
        off = ", with AVX-512 switched off" if m.get("switched_off") else ""
        kind = f" ({m['vectors']}{off})" if "vectors" in m else ""
        text = f"{m['cpu']}{kind}, {m['cores']} cores, Python {m['python']}, torch {m['torch']}"
        seen.setdefault(f"{text}, Parley {m['commit']}", []).append(entry)
    lines = []
    for text, members in seen.items():
        dates = sorted(entry["date"][:10] for entry in members)
        loads = [entry["machine"]["load_average"][0] for entry in members]
        when = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
        rate = rates.get(members[0]["machine"]["cpu"])
        gemm = f", {rate / 1e9:.0f} GFLOP/s a core in GEMM" if rate else ""
        load = f"load average before {min(loads):g} to {max(loads):g}"
        lines.append(f"- {text}{gemm}; {when}, {load}.")
    return "\n".join(lines)
