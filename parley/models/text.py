"""Transformers that classify texts: BERT-mini, DistilBERT, and whatever `transformers` loads.

Axes: n samples, t tokens.

A text is one row of token IDs, filled up with the padding token, so that inputs stay one tensor;
the attention mask follows from it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from parley.data import hub
from parley.errors import BadValue, needed
from parley.files import user_path

VOCABULARY = 30_522
"""The size of BERT's uncased vocabulary."""
MOST = 10_000_000
"""Tokens, or outputs of a head."""

CLASSES, NEXT_TOKEN = "classes", "next-token"
"""What a network from elsewhere answers: a class for a text, or the next token at each position."""

_EVALUATED_AT_ONCE = 64

CLASSIFIER, CAUSAL = "AutoModelForSequenceClassification", "AutoModelForCausalLM"

# What `pretrained` weights must have in common, under names that every config has.
_SIZES = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads")


class _Transformer(nn.Module):
    """A network of `transformers` as a function of one int64 tensor [n, t]."""

    loop_only = True
    """Its masks and caches, and the lengths of texts, are more than vmap can trace."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network
        self.vocabulary = int(network.get_input_embeddings().num_embeddings)

    @property
    def random(self) -> bool:
        """Whether a forward pass draws random numbers, in layers or in functions."""
        return any(value > 0 for value in _dropouts(self.network.config).values())


class TextClassifier(_Transformer):
    """One class for each text."""

    def __init__(self, network: Any) -> None:
        super().__init__(network)
        self.padding = int(network.config.pad_token_id)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [n, classes]."""
        _check_ids(ids, self.vocabulary)
        if torch.compiler.is_exporting():  # what is exported cannot depend on values
            return self._logits(ids, ids.shape[1])
        lengths = self._lengths(ids)
        if self.training or len(ids) <= _EVALUATED_AT_ONCE:
            return self._logits(ids, int(lengths.max()))
        # Texts of similar length go together: most are far shorter than the longest.
        order = lengths.argsort(stable=True)
        parts = [
            self._logits(ids[part], int(lengths[part].max()))
            for part in order.split(_EVALUATED_AT_ONCE)
        ]
        return torch.cat(parts)[order.argsort()]

    def _lengths(self, ids: Tensor) -> Tensor:
        """[n]: the number of tokens in each row; at least 1."""
        places = torch.arange(1, ids.shape[1] + 1, device=ids.device)
        return ((ids != self.padding) * places).amax(1).clamp(min=1)

    def _logits(self, ids: Tensor, longest: int) -> Tensor:
        # Columns that are padding in every row have no effect.
        ids = ids[:, :longest]
        mask = (ids != self.padding).to(torch.int64)
        logits: Tensor = self.network(input_ids=ids, attention_mask=mask).logits
        return logits


class NextToken(_Transformer):
    """A causal language model."""

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next token at each position, [n, t, vocabulary]."""
        _check_ids(ids, self.vocabulary)
        logits: Tensor = self.network(input_ids=ids, use_cache=False).logits
        return logits


def _check_ids(ids: Tensor, vocabulary: int) -> None:
    if ids.dtype != torch.int64:
        raise BadValue("model", "text", "token IDs", f"the inputs are {ids.dtype}")
    if torch.compiler.is_exporting():
        return
    smallest, largest = int(ids.min()), int(ids.max())
    if smallest < 0 or largest >= vocabulary:
        raise BadValue(
            "data.tokenizer",
            f"token {smallest if smallest < 0 else largest}",
            "the tokenizer that belongs to the model",
            because=f"the model knows {vocabulary} tokens",
        )


def bert_mini(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    pretrained: str = "",
    dropout: float | None = None,
    vocabulary: int = VOCABULARY,
    outputs: int = 0,
) -> nn.Module:
    """BERT with 4 layers of width 256: 11,073,284 parameters for texts of 128 and 4 classes.

    Turc et al., "Well-Read Students Learn Better", 2019. There are as many positions as a text has
    tokens. `pretrained` is a folder or a hub ID to load weights from; without it the weights are
    random. `dropout` sets all dropout rates (the library's default is 0.1). `outputs` makes the
    head wider than the number of classes: the paper's figures are for a head with 10 outputs
    (11,074,826 parameters).
    """
    transformers = needed("transformers", "text", "model", "bert-mini")
    config = transformers.BertConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
    )
    return _named(
        "bert-mini", config, input_shape, classes, pretrained, dropout, vocabulary, outputs
    )


def distilbert(
    input_shape: tuple[int, ...],
    classes: int,
    *,
    pretrained: str = "",
    dropout: float | None = None,
    vocabulary: int = VOCABULARY,
    outputs: int = 0,
) -> nn.Module:
    """DistilBERT: 66,661,636 parameters for texts of 128 and 4 classes.

    Sanh et al., "DistilBERT, a distilled version of BERT", 2019. Options as for `bert_mini`; the
    paper's 66.67 M are for a head with 10 outputs (66,666,250). Without `dropout` the rates are
    0.1, and 0.2 before the head.
    """
    transformers = needed("transformers", "text", "model", "distilbert")
    config = transformers.DistilBertConfig()
    return _named(
        "distilbert", config, input_shape, classes, pretrained, dropout, vocabulary, outputs
    )


def hugging_face(
    input_shape: tuple[int, ...],
    classes: int,
    source: str,
    *,
    fresh: bool = False,
    dropout: float | None = None,
    head: str = CLASSES,
) -> nn.Module:
    """Any sequence classifier, from a folder or a hub ID: the encoder's weights and a new head.
    With ``head="next-token"``, which the task language-model implies, any causal language model.

    With `fresh` only the architecture is used. `dropout=None` keeps the source's rates.
    """
    name = f"hf:{source}"
    length = _length(name, input_shape)
    if head not in (CLASSES, NEXT_TOKEN):
        raise BadValue("model.head", head, f"{CLASSES} or {NEXT_TOKEN}")
    config = _read_config(name, source)
    _set_dropout(config, dropout)
    if head == NEXT_TOKEN:
        positions = getattr(config, "max_position_embeddings", length)
        if length > positions:
            valid = f"texts of at most {positions} tokens"
            raise BadValue("model", name, valid, f"the inputs have {length}")
        with _quiet():
            make = _fresh if fresh else partial(_pretrained, source=source)
            return NextToken(make(name, config=config, kind=CAUSAL))
    config.num_labels = classes
    with _quiet():
        network = _fresh(name, config) if fresh else _pretrained(name, source, config)
    return _classifier(name, network, length)


def _named(
    name: str,
    config: Any,
    input_shape: tuple[int, ...],
    classes: int,
    pretrained: str,
    dropout: float | None,
    vocabulary: int,
    outputs: int,
) -> nn.Module:
    length = _length(name, input_shape)
    if type(vocabulary) is not int or not 1 <= vocabulary <= MOST:
        raise BadValue("model.vocabulary", vocabulary, f"a whole number from 1 to {MOST}")
    if type(outputs) is not int or not (outputs == 0 or classes <= outputs <= MOST):
        valid = f"0, or a whole number from {classes} (the classes) to {MOST}"
        raise BadValue("model.outputs", outputs, valid)
    if pretrained:
        given = _read_config(name, pretrained, field="model.pretrained")
        for size in _SIZES:
            found, wanted = getattr(given, size, None), getattr(config, size)
            if found != wanted:
                valid = f"weights of {name}, or model = hf:{pretrained}"
                because = f"its {size} is {found}, not {wanted}"
                raise BadValue("model.pretrained", pretrained, valid, because)
        config = given
    else:
        config.vocab_size = vocabulary
        config.max_position_embeddings = length
    config.num_labels = outputs or classes
    _set_dropout(config, dropout)
    with _quiet():
        network = _pretrained(name, pretrained, config) if pretrained else _fresh(name, config)
    return _classifier(name, network, length)


def _length(name: str, input_shape: tuple[int, ...]) -> int:
    if len(input_shape) != 1:
        raise BadValue(
            "model",
            name,
            "text (for example data = ag_news), or another model",
            because=f"the inputs have shape {input_shape}",
        )
    return input_shape[0]


def _dropouts(config: Any) -> dict[str, float]:
    """Every dropout rate of the network, by its name in the config."""
    return {
        key: value
        for key, value in config.to_dict().items()
        if "drop" in key and type(value) in (float, int)
    }


def _set_dropout(config: Any, dropout: float | None) -> None:
    if dropout is None:
        return
    if type(dropout) not in (float, int) or not 0 <= dropout < 1:
        raise BadValue("model.dropout", dropout, "a number from 0 to below 1")
    for key in config.to_dict():
        if "dropout" in key:
            setattr(config, key, float(dropout))


def _read_config(name: str, source: str, field: str = "model") -> Any:
    transformers = needed("transformers", "text", field, name)
    return _read(
        lambda **how: transformers.AutoConfig.from_pretrained(
            _place(source), trust_remote_code=False, **how
        ),
        field,
        source,
    )


def _fresh(name: str, config: Any, kind: str = CLASSIFIER) -> Any:
    transformers = needed("transformers", "text", "model", name)
    return getattr(transformers, kind).from_config(config, trust_remote_code=False)


def _pretrained(name: str, source: str, config: Any, kind: str = CLASSIFIER) -> Any:
    transformers = needed("transformers", "text", "model", name)
    load = getattr(transformers, kind).from_pretrained
    # Safetensors only: never unpickle files from elsewhere.
    network, report = _read(
        lambda **how: load(
            _place(source),
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
            **how,
        ),
        "model",
        source,
    )
    encoder = f"{network.base_model_prefix}."
    lost = sorted(k for k in report["missing_keys"] if "pooler" not in k)
    if kind == CLASSIFIER:  # whose head is new
        lost = [key for key in lost if key.startswith(encoder)]
    if lost:
        because = f"its weights lack {lost[0]}" + f" and {len(lost) - 1} more" * (len(lost) > 1)
        raise BadValue("model", source, "weights of the whole encoder", because)
    return network


def _read(read: Any, field: str, source: str) -> Any:
    """Calls a loader; turns its many error types into one that says what was looked for."""
    local = user_path(source).is_dir()
    if not local and not hub.is_id(source) and not hub.is_id(f"owner/{source}"):
        raise BadValue(field, source, "a folder with config.json, or a hub ID owner/name")
    reachable = True
    try:
        with hub.offline_unless_reachable(not local) as reachable:
            return read(local_files_only=local or not reachable)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        if local:
            valid = "a folder with config.json and model.safetensors, as on the hub"
            raise BadValue(field, source, valid, reason) from error
        raise BadValue(
            field,
            source,
            "a model on the Hugging Face hub, or a folder with config.json and "
            "model.safetensors (downloaded from the hub)",
            because=reason if reachable else "no such folder, and the hub cannot be reached",
        ) from error


def _place(source: str) -> str:
    folder = user_path(source)
    return str(folder) if folder.is_dir() else source


def _classifier(name: str, network: Any, length: int) -> TextClassifier:
    config = network.config
    positions = getattr(config, "max_position_embeddings", length)
    if length > positions:
        raise BadValue(
            "model", name, f"texts of at most {positions} tokens", f"the inputs have {length}"
        )
    if config.pad_token_id is None:
        raise BadValue("model", name, "a model with a padding token (pad_token_id in its config)")
    if config.model_type in ("bert", "distilbert") and positions > length:
        # Position embeddings that no text uses would still be sent in every message.
        table = network.base_model.embeddings
        kept = table.position_embeddings.weight[:length].detach().clone()
        table.position_embeddings = nn.Embedding.from_pretrained(kept, freeze=False)
        config.max_position_embeddings = length
    return TextClassifier(network)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the progress bars and the report on the new head from `transformers`."""
    from transformers.utils import logging

    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
