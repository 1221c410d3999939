"""One evaluation of a run, a line of ``records.jsonl``: its type, and the one parser of the file.

Needs only the standard library: the dashboard reads records without torch.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Required, TypedDict, cast

from parley.files import Unreadable, parse_json


class Record(TypedDict, total=False):
    """What is measured after an epoch, the same on every worker.

    Only the epoch is always there: versions of Parley and settings differ in what they record.
    Fields that are not listed here are kept as they are. Accuracies are shares from 0 to 1. Other
    metrics have the same fields under their own names, such as ``rmse_mean_model``; what could not
    be computed, such as AUROC where all samples have one class, is None. So are the forms for the
    agents' own models in epochs in which only the averaged one was evaluated.
    """

    epoch: Required[int]
    """Epochs trained so far."""
    step: int
    """Steps taken so far."""
    lr: float
    """Learning rate in this epoch."""
    test_samples: int
    """Test samples that every model was evaluated on."""
    test_samples_absent: int
    """Test samples that are missing because their hosts are; only if there are any."""
    suspicious_messages: int
    """Messages so far that no honest agent would have sent; only if there are any."""
    loss: float
    """Test loss of the averaged model."""
    loss_train: float
    """Training loss of the agents' own models, mean over the epoch."""
    accuracy_mean_model: float
    """Test accuracy of the average of all models."""
    accuracy_own: float | None
    """Test accuracy of the agents' own models, mean over agents."""
    accuracy_own_min: float | None
    """Of the worst agent."""
    accuracy_own_max: float | None
    """Of the best agent."""
    accuracy_after_gossip: float | None
    """Test accuracy after further gossip rounds without training, mean over agents."""
    accuracy_agents: list[float | None]
    """Test accuracy of each agent's own model; None for an absent agent."""
    accuracy_personal_agents: list[float | None]
    """Accuracy of each agent's own model on that agent's own test samples; only if agents have
    their own."""
    accuracy_personal_mean_model_agents: list[float | None]
    """Accuracy of the averaged model on each agent's own test samples."""
    test_samples_agents: list[int | None]
    """How many test samples each agent has of its own."""
    consensus_distance: float
    """Root mean square distance of the agents' models from their average."""
    distance_agents: list[float | None]
    """Distance of each agent's model from the average; None for an absent agent."""
    bytes_models: float
    """Bytes of models that an agent has sent so far, mean over agents."""
    bytes_cross_gradients: float
    """Bytes of cross-gradients that an agent has sent so far, mean over agents."""
    epsilon_norm: float
    """Norm of the model-variance bias ε; only with ``bias_norms``."""
    omega_norm: float
    """Norm of the data-variance bias ω; only with ``bias_norms``."""
    seconds: float
    """Time spent training so far, without evaluation."""
    seconds_network: float
    """Time the run would have taken so far on the simulated network; only with ``links``."""
    gradients_per_second: float
    """Sample gradients per second of all agents together."""
    peak_memory_mb: float
    """Peak memory of all worker processes together."""


LARGEST = 1e150
"""The largest number that counts as one: squares of it are still finite."""

EACH_AGENT = "_agents"
"""How the names of fields end that are lists with one value per agent."""


class Parsed(NamedTuple):
    """The records in a text, and the numbers of the damaged lines."""

    records: list[Record]
    damaged: list[int]


def parse_lines(lines: Iterable[bytes]) -> Parsed:
    """The records in lines, each without its newline.

    >>> parse_lines([b'{"epoch": 1}', b"nonsense", b'{"epoch": 2}'])
    Parsed(records=[{'epoch': 1}, {'epoch': 2}], damaged=[2])
    """
    records, damaged = [], []
    for number, line in enumerate(lines, start=1):
        record = parse_record(line)
        if record is None:
            damaged.append(number)
        else:
            records.append(record)
    return Parsed(records, damaged)


def parse_record(line: bytes) -> Record | None:
    """The record in a line, or None if there is none.

    >>> parse_record(b'{"epoch": NaN}') is None, parse_record(b'{"loss": 1}') is None
    (True, True)
    """
    try:
        found = parse_json(line)
    except Unreadable:
        return None
    if not isinstance(found, dict) or number(found.get("epoch")) is None:
        return None
    return cast(Record, found)


def latest_by_epoch(records: Sequence[Record]) -> list[Record]:
    """In order of epochs; if an epoch occurs twice, the later line counts.

    >>> latest_by_epoch([{"epoch": 2}, {"epoch": 1}, {"epoch": 2, "loss": 0.5}])
    [{'epoch': 1}, {'epoch': 2, 'loss': 0.5}]
    """
    by_epoch = {record["epoch"]: record for record in records}
    return [by_epoch[epoch] for epoch in sorted(by_epoch)]


def number(found: object) -> float | None:
    """A finite number as a float; None for anything else, and for what cannot be averaged.

    >>> number(1), number(True), number(float("inf")), number(10**400), number("1")
    (1.0, None, None, None, None)
    """
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    try:
        return float(found) if math.isfinite(found) and abs(found) <= LARGEST else None
    except OverflowError:
        return None


def value(record: Mapping[str, Any] | Record, name: str) -> float | None:
    """A field of a record, if it is there and a finite number.

    >>> value({"epoch": 1, "loss": 0.5}, "loss"), value({"epoch": 1}, "loss")
    (0.5, None)
    """
    return number(record.get(name))


def sent_megabytes(record: Mapping[str, Any] | Record) -> float | None:
    """What an agent has sent so far, in MB, if the record says so."""
    models, gradients = value(record, "bytes_models"), value(record, "bytes_cross_gradients")
    return None if models is None or gradients is None else (models + gradients) / 1e6
