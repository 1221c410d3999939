"""Texts as token IDs, with an existing tokenizer or one built from the training texts.

Axes: n texts, t tokens.
"""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parley.data import hub
from parley.errors import BadValue, needed
from parley.files import Unreadable, parse_json, read_text, user_path

TRAIN = "train"
"""The name of the tokenizer that is built from the training texts."""

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_VALID = "train, a folder with tokenizer.json or vocab.txt, or a hub ID owner/name"


def find(source: str, root: str | Path | None = None) -> list[Path]:
    """The files that make up a tokenizer: in a folder, in `root/owner/name`, or on the hub."""
    places = [user_path(source), *([user_path(root) / source] if root else [])]
    folder = next((place for place in places if place.is_dir()), None)
    if folder is not None:
        return _wanted(source, lambda name: _existing(folder / name))
    if not hub.is_id(source) and not hub.is_id(f"owner/{source}"):
        raise BadValue("data.tokenizer", source, _VALID, because="no such folder")
    needed("huggingface_hub", "hub", "data.tokenizer", source)
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    with hub.offline_unless_reachable() as reachable:

        def download(name: str) -> Path | None:
            try:
                return Path(hf_hub_download(source, name))
            except EntryNotFoundError:  # on the hub, or among earlier downloads when offline
                return None

        try:
            return _wanted(source, download)
        except Exception as error:  # many unrelated types, which all mean "not found"
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            if not reachable:
                reason = "no such folder, and the hub cannot be reached"
            elif isinstance(error, BadValue):
                raise
            raise BadValue("data.tokenizer", source, _VALID, reason) from error


def _wanted(source: str, get: Callable[[str], Path | None]) -> list[Path]:
    for name in ("tokenizer.json", "vocab.txt"):
        main = get(name)
        if main is not None:
            settings = get("tokenizer_config.json")
            return [main] if settings is None else [main, settings]
    raise BadValue("data.tokenizer", source, _VALID, because="it has neither file")


def _existing(path: Path) -> Path | None:
    return path if path.is_file() else None


def identity(files: Sequence[Path]) -> str:
    """A digest that changes when the contents of the files do."""
    content = hashlib.sha256()
    for path in files:
        content.update(path.name.encode() + path.read_bytes())
    return content.hexdigest()


def read(files: Sequence[Path], source: str) -> Any:
    """The tokenizer in these files, set to pad with its own padding token."""
    library = needed("tokenizers", "text", "data.tokenizer", source)
    settings = _settings(files[1], source) if len(files) > 1 else {}
    try:
        if files[0].name == "tokenizer.json":
            tokenizer = library.Tokenizer.from_file(str(files[0]))
        else:
            words = read_text(files[0]).splitlines()
            tokenizer = _word_piece(words, bool(settings.get("do_lower_case", True)))
    except Exception as error:  # the library raises bare Exceptions
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise BadValue("data.tokenizer", source, _VALID, because=reason) from error
    return _with_padding(tokenizer, settings.get("pad_token"), source)


def _settings(path: Path, source: str) -> dict[str, Any]:
    try:
        found = parse_json(read_text(path))
    except Unreadable as error:
        raise BadValue("data.tokenizer", source, _VALID, f"{path.name}: {error}") from None
    if not isinstance(found, dict):
        raise BadValue("data.tokenizer", source, _VALID, f"{path.name} is not a table")
    return found


def _with_padding(tokenizer: Any, named: Any, source: str) -> Any:
    own = (tokenizer.padding or {}).get("pad_token")
    named = named.get("content") if isinstance(named, dict) else named
    for token in (named, own, "[PAD]", "<pad>"):
        number = tokenizer.token_to_id(token) if isinstance(token, str) and token else None
        if number is not None:
            tokenizer.no_truncation()
            tokenizer.enable_padding(pad_id=number, pad_token=token)
            return tokenizer
    raise BadValue("data.tokenizer", source, "a tokenizer that has a padding token")


def train(texts: Iterable[str], size: int) -> Any:
    """A WordPiece tokenizer like BERT's uncased one, with at most `size` tokens from these texts.

    The vocabulary comes from byte-pair merges: the library's own WordPiece trainer numbers pieces
    in the order of a randomly seeded hash table, so that two workers would not agree.
    """
    library = needed("tokenizers", "text", "data.tokenizer", TRAIN)
    merging = library.Tokenizer(library.models.BPE())
    merging.normalizer = library.normalizers.BertNormalizer(lowercase=True)
    merging.pre_tokenizer = library.pre_tokenizers.Sequence(
        [library.pre_tokenizers.BertPreTokenizer(), library.pre_tokenizers.Metaspace(split=False)]
    )
    trainer = library.trainers.BpeTrainer(vocab_size=size, show_progress=False)
    merging.train_from_iterator(texts, trainer=trainer)
    numbers: dict[str, int] = merging.get_vocab()
    start = "▁"  # marks the beginning of a word
    letters = sorted(token for token in numbers if len(token) == 1 and token != start)
    # Every letter, both at the start of a word and inside: no training text has unknown tokens.
    words = [*_SPECIAL, *letters, *(f"##{letter}" for letter in letters)]
    if len(words) > size:
        valid = f"a whole number of at least {len(words)}"
        raise BadValue(
            "data.vocabulary", size, valid, f"the texts have {len(letters)} different letters"
        )
    merged = sorted((token for token in numbers if len(token) > 1), key=numbers.__getitem__)
    pieces = [t.removeprefix(start) if t.startswith(start) else f"##{t}" for t in merged]
    words = list(dict.fromkeys([*words, *pieces]))[:size]
    return _with_padding(_word_piece(words, lowercase=True), None, TRAIN)


def _word_piece(words: Sequence[str], lowercase: bool) -> Any:
    """BERT's tokenizer with this vocabulary."""
    import tokenizers as library

    numbers = {word: number for number, word in enumerate(words)}
    tokenizer = library.Tokenizer(library.models.WordPiece(numbers, unk_token="[UNK]"))
    tokenizer.normalizer = library.normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(s, numbers[s]) for s in ("[CLS]", "[SEP]")]
    )
    return tokenizer


def encode(tokenizer: Any, texts: Sequence[str], length: int) -> Tensor:
    """int32 [n, t]: every text truncated or padded to `length` tokens, special ones included."""
    padding = tokenizer.padding
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(
        length=length, pad_id=padding["pad_id"], pad_token=padding["pad_token"]
    )
    ids = np.empty((len(texts), length), dtype=np.int32)
    for start in range(0, len(texts), 1000):  # encodings are large until their ids are copied
        part = tokenizer.encode_batch_fast(list(texts[start : start + 1000]))
        ids[start : start + len(part)] = [encoding.ids for encoding in part]
    return torch.from_numpy(ids)
