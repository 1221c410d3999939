"""Texts: tokenizers, cached token numbers, and the transformers that classify them."""

import json
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from pyarrow import parquet
from torch import nn

from parley.compute import choose as engines
from parley.compute.task import Task
from parley.data import Batches, Samples, Transform, from_user, load, own
from parley.data import text as tokens
from parley.errors import BadValue
from parley.models import build, options

pytest.importorskip("transformers", reason="needs pip install 'parley-learning[text]'")

LENGTH = 16
SENTENCE = "oil prices rise as markets fear a strike the cup final goes to extra time new phone"
WORDS = SENTENCE.split()


@pytest.fixture(autouse=True)
def own_caches(tmp_path, monkeypatch):
    monkeypatch.setenv("PARLEY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.delenv("PARLEY_DATA_ROOT", raising=False)


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_, **__):
        raise ConnectionError("no network in this test")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("it waits to try again"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A folder as the hub's: a small BERT encoder without a head, and its tokenizer."""
    from transformers import BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=60,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    BertModel(config).save_pretrained(folder)
    tokens.train(texts_of(200), 60).save(str(folder / "tokenizer.json"))
    return folder


def texts_of(n: int, seed: int = 0) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(1, 12))).capitalize() for _ in range(n)]


def token_rows(n: int, vocabulary: int = 60, seed: int = 0) -> torch.Tensor:
    """Rows of different lengths, padded with 0."""
    rng = np.random.default_rng(seed)
    rows = rng.integers(5, vocabulary, (n, LENGTH))
    rows[np.arange(LENGTH) >= rng.integers(2, LENGTH, (n, 1))] = 0
    return torch.from_numpy(rows)


def write_texts(folder: Path, splits: dict[str, list[str]], names=("World", "Sports")) -> None:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(names))}
    )
    (folder / "data").mkdir(parents=True, exist_ok=True)
    for split, texts in splits.items():
        rows = {"text": texts, "label": [i % len(names) for i in range(len(texts))]}
        dataset = datasets.Dataset.from_dict(rows, features=features)
        dataset.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")


@pytest.mark.parametrize(
    ("name", "values", "parameters"),
    [
        ("bert-mini", {}, 11_073_284),
        ("bert-mini", {"outputs": 10}, 11_074_826),  # 11.07 M in the paper
        ("bert-mini", {"vocabulary": 1000}, 11_073_284 - 29_522 * 256),
        ("distilbert", {}, 66_661_636),
        ("distilbert", {"outputs": 10}, 66_666_250),  # 66.67 M in the paper
    ],
)
def test_parameter_counts(name, values, parameters):
    with torch.device("meta"):
        model = build(name, (128,), 4, **values)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("name", ["bert-mini", "distilbert"])
def test_dropout_is_an_option(name):
    def shares(**values):
        with torch.device("meta"):
            model = build(name, (8,), 4, vocabulary=50, **values)
        return {m.p for m in model.modules() if isinstance(m, nn.Dropout)}, model.random

    assert shares() == ({0.1} if name == "bert-mini" else {0.1, 0.2}, True)
    assert shares(dropout=0.3) == ({0.3}, True)
    assert shares(dropout=0) == ({0.0}, False)


def test_the_mask_follows_from_padding(tiny):
    model = build(f"hf:{tiny}", (LENGTH,), 4).eval()
    ids = token_rows(200)
    with torch.no_grad():
        expected = model.network(input_ids=ids, attention_mask=(ids != 0).long()).logits
        torch.testing.assert_close(model(ids), expected)  # in parts, by length
        torch.testing.assert_close(model(ids[:9]), expected[:9])
        one_by_one = torch.cat([model(row[None, : int((row != 0).sum())]) for row in ids[:9]])
        torch.testing.assert_close(one_by_one, expected[:9])
        assert model(torch.zeros(2, LENGTH, dtype=torch.int64)).isfinite().all()


def test_padding_has_no_part_in_gradients(tiny):
    task = Task(build(f"hf:{tiny}", (LENGTH,), 4, dropout=0), dtype=torch.float64)
    ids, targets = token_rows(6), torch.arange(6) % 4
    short = ids[:, : int((ids != 0).sum(1).max())]

    def gradient(inputs):
        x_D = task.start().requires_grad_()
        return torch.autograd.grad(task.losses(x_D, inputs, targets).mean(), x_D)[0]

    torch.testing.assert_close(gradient(ids), gradient(short), rtol=1e-12, atol=1e-15)
    x_D = task.start().requires_grad_()
    task.model.padding = -1  # no mask, nothing cut off: then padding does matter
    [unmasked] = torch.autograd.grad(task.losses(x_D, ids, targets).mean(), x_D)
    assert not torch.allclose(unmasked, gradient(short))


def batches_of(agents: list[int], shares: dict[int, Samples]) -> Batches:
    return Batches([shares[a] for a in agents], agents, 5, Transform(), seed=3)


@pytest.mark.parametrize("name", ["bert-mini", "distilbert", "hf"])
def test_dropout_does_not_depend_on_the_hosting(name, tiny):
    torch.manual_seed(0)
    if name == "distilbert":  # its own size takes seconds a gradient
        from transformers import DistilBertConfig

        folder = tiny / "distilbert"
        config = DistilBertConfig(vocab_size=60, dim=16, n_layers=2, n_heads=2, hidden_dim=32)
        config.save_pretrained(folder)
        model = build(f"hf:{folder}", (LENGTH,), 4, fresh=True)
    elif name == "hf":
        model = build(f"hf:{tiny}", (LENGTH,), 4)
    else:
        model = build(name, (LENGTH,), 4, vocabulary=60)
    task = Task(model)
    assert task.random
    shares = {a: Samples(token_rows(20, seed=a).int(), torch.arange(20) % 4) for a in range(3)}
    x_D = task.start()

    def gradient(hosted, agent, owner, step=4, seed=0):
        torch.manual_seed(hosted[0])  # whatever was drawn before must not matter
        loop = engines.build("loop", task, seed)
        batch = batches_of(hosted, shares).at(step)
        rows = [hosted.index(a) for a in hosted]
        _, g_PD = loop.gradients(x_D.expand(len(hosted), -1), batch, rows, [owner] * len(hosted))
        return g_PD[hosted.index(agent)]

    together, alone = gradient([0, 1, 2], 2, owner=1), gradient([2], 2, owner=1)
    assert torch.equal(together, alone) and alone.norm() > 0
    for other in (
        gradient([2], 2, owner=0),
        gradient([2], 2, owner=1, seed=1),
        gradient([2], 2, owner=1, step=8),  # the same samples in another order
    ):
        assert not torch.equal(other, alone)


def test_evaluation_is_without_dropout(tiny):
    task = Task(build(f"hf:{tiny}", (LENGTH,), 4), dtype=torch.float64)
    ids = token_rows(80)
    first = task.predict(task.start(), ids)
    torch.manual_seed(5)
    parts = [task.predict(task.start(), part) for part in ids.split(17)]
    torch.testing.assert_close(torch.cat(parts), first)
    assert task.model.training
    copy = task.module(task.start() * 0)
    assert not copy.training and (copy(ids) == 0).all()
    assert copy.network.bert.embeddings.position_ids.dtype == torch.int64


def test_a_pretrained_encoder_gets_a_new_head(tiny):
    from transformers import BertModel

    def seeded(seed, **values):
        torch.manual_seed(seed)
        return build(f"hf:{tiny}", (LENGTH,), 4, **values).state_dict()

    one, again, other = seeded(0), seeded(0), seeded(1)
    stored = BertModel.from_pretrained(tiny).state_dict()
    head = {"network.classifier.weight", "network.classifier.bias"}
    for name, value in one.items():
        assert torch.equal(value, again[name])
        if name in head:
            assert value.shape[0] == 4
        elif name.endswith("position_embeddings.weight"):  # as many as a text has tokens
            assert torch.equal(value, stored["embeddings.position_embeddings.weight"][:LENGTH])
        else:
            assert torch.equal(value, stored[name.removeprefix("network.bert.")])
            assert torch.equal(value, other[name])
    assert not torch.equal(one["network.classifier.weight"], other["network.classifier.weight"])
    fresh = seeded(0, fresh=True)
    name = "network.bert.encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(fresh[name], one[name])
    assert {n: v.shape for n, v in fresh.items()} == {n: v.shape for n, v in one.items()}


def test_weights_of_bert_mini_from_a_folder(tmp_path):
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
    config = BertConfig(vocab_size=50, num_hidden_layers=4, **sizes)
    BertModel(config).save_pretrained(tmp_path / "mini")
    model = build("bert-mini", (LENGTH,), 3, pretrained=str(tmp_path / "mini"), dropout=0.0)
    loaded = model.network.bert.embeddings.word_embeddings.weight
    stored = BertModel.from_pretrained(tmp_path / "mini").embeddings.word_embeddings.weight
    assert torch.equal(loaded, stored) and not model.random
    config.num_hidden_layers = 3
    config.save_pretrained(tmp_path / "mini")
    with pytest.raises(BadValue, match=r"num_hidden_layers is 3, not 4.*hf:"):
        build("bert-mini", (LENGTH,), 3, pretrained=str(tmp_path / "mini"))


def test_models_that_cannot_be_had(tiny, tmp_path, no_network):
    with pytest.raises(BadValue, match=r"inputs have shape \(3, 32, 32\)"):
        build("bert-mini", (3, 32, 32), 10)
    with pytest.raises(BadValue, match=r"at most 40 tokens"):
        build(f"hf:{tiny}", (41,), 4)
    with pytest.raises(BadValue, match=r"owner/name.*the hub cannot be reached.*model.safetensors"):
        build("hf:owner/name", (16,), 4)
    with pytest.raises(BadValue, match=r"^model.pretrained: 'owner/name'.*hub cannot be reached"):
        build("distilbert", (16,), 4, pretrained="owner/name")
    with pytest.raises(BadValue, match=r"hf:a/b/c|'a/b/c'.*a folder with config.json"):
        build("hf:a/b/c", (16,), 4)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadValue, match=r"empty.*a folder with config.json and model.safetensors"):
        build(f"hf:{tmp_path / 'empty'}", (16,), 4)
    (tmp_path / "config.json").write_text((tiny / "config.json").read_text())
    with pytest.raises(BadValue, match=r"a folder with config.json and model.safetensors"):
        build(f"hf:{tmp_path}", (16,), 4)
    build(f"hf:{tmp_path}", (16,), 4, fresh=True)
    for option, value in (("dropout", 1.0), ("outputs", 2), ("vocabulary", 0)):
        with pytest.raises(BadValue, match=f"model.{option}: {value}"):
            build("bert-mini", (16,), 4, **{option: value})
    assert options("hf:anything") == ("fresh", "dropout", "head")


def test_weights_that_lack_the_encoder_are_refused(tiny, tmp_path):
    from safetensors.torch import load_file, save_file

    weights = load_file(tiny / "model.safetensors")
    kept = {k: v for k, v in weights.items() if "layer.1." not in k}
    save_file(kept, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text((tiny / "config.json").read_text())
    with pytest.raises(BadValue, match=r"lack bert.encoder.layer.1.* and 15 more"):
        build(f"hf:{tmp_path}", (16,), 4)


@pytest.mark.parametrize("name", ["bert-mini", "distilbert", "hf:folder"])
def test_without_the_extra_the_error_names_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        BadValue, match=r"it needs transformers.*pip install 'parley-learning\[text\]'"
    ):
        build(name, (16,), 4)


def test_the_wrong_tokenizer_is_noticed(tiny):
    model = build(f"hf:{tiny}", (LENGTH,), 4)
    with pytest.raises(BadValue, match=r"token 60.*the model knows 60 tokens"):
        model(torch.full((1, LENGTH), 60))
    with pytest.raises(BadValue, match="float32"):
        model(torch.zeros(1, LENGTH))


def test_nothing_is_printed(tiny, capfd):
    build(f"hf:{tiny}", (LENGTH,), 4)
    assert capfd.readouterr() == ("", "")


def test_a_trained_tokenizer_splits_words():
    tokenizer = tokens.train(texts_of(300), 100)
    assert tokenizer.get_vocab_size() <= 100
    assert [tokenizer.token_to_id(t) for t in ("[PAD]", "[UNK]", "[CLS]", "[SEP]")] == [0, 1, 2, 3]
    encoded = tokenizer.encode("Oil PRICES rose")
    assert encoded.tokens[0] == "[CLS]" and encoded.tokens[-1] == "[SEP]"
    joined = " ".join(encoded.tokens[1:-1]).replace(" ##", "")
    assert joined == "oil prices rose"  # the last was never seen
    assert 1 not in encoded.ids and 1 in tokenizer.encode("Öl 5 €").ids
    rows = tokens.encode(tokenizer, ["oil", SENTENCE, ""], 8)
    assert rows.shape == (3, 8) and rows.dtype == torch.int32
    assert (
        rows[0, 0] == 2 and 0 in rows[0] and rows[1, -1] == 3 and rows[2].tolist()[:3] == [2, 3, 0]
    )
    with pytest.raises(BadValue, match=r"data.vocabulary: 20 .*letters.*number of at least"):
        tokens.train(texts_of(300), 20)


def test_training_a_tokenizer_always_gives_the_same():
    # The library's own WordPiece trainer fails this, even within one process.
    assert len({tokens.train(texts_of(300), 200).to_str() for _ in range(4)}) == 1


def test_texts_are_encoded_once(tmp_path, monkeypatch):
    train, test = texts_of(30), texts_of(7, seed=1)
    write_texts(tmp_path / "fancyzhx" / "ag_news", {"train": train, "test": test})
    options = {"length": LENGTH, "vocabulary": 90}
    first = load("ag_news", tmp_path, options)
    assert first.train.inputs.shape == (30, LENGTH) and first.test.inputs.shape == (7, LENGTH)
    assert first.train.inputs.dtype == torch.int32
    assert first.class_names == ("World", "Sports") and first.train.targets.tolist()[:3] == [
        0,
        1,
        0,
    ]
    expected = tokens.encode(tokens.train(train, 90), test, LENGTH)
    assert torch.equal(first.test.inputs, expected)
    batch = Batches([first.train], [0], 4, first.transform, seed=0).at(0)
    assert batch.inputs.dtype == torch.int64 and batch.inputs.shape == (1, 4, LENGTH)

    with monkeypatch.context() as patch:
        for name in ("train", "encode"):
            patch.setattr(tokens, name, lambda *_: pytest.fail("the cache was not used"))
        patch.setattr("parley.data.decode._open", lambda *_: pytest.fail("the cache was not used"))
        again = load("ag_news", tmp_path, options)
        assert torch.equal(again.train.inputs, first.train.inputs)
        assert (again.class_names, again.transform) == (first.class_names, first.transform)
    assert load("ag_news", tmp_path, {**options, "length": 8}).train.inputs.shape == (30, 8)
    assert load("ag_news", tmp_path, {**options, "vocabulary": 70}).train.inputs.max() < 70
    by_path = load(str(tmp_path / "fancyzhx" / "ag_news"), options=options)
    assert torch.equal(by_path.train.inputs, first.train.inputs)

    write_texts(tmp_path / "fancyzhx" / "ag_news", {"train": train[:20]})
    assert len(load("ag_news", tmp_path, options).train) == 20


def test_a_tokenizer_from_a_folder(tmp_path, tiny, no_network, monkeypatch):
    texts = texts_of(12)
    write_texts(tmp_path / "news", {"train": texts, "test": texts[:3]})
    news = str(tmp_path / "news")
    options = {"length": LENGTH, "tokenizer": str(tiny)}
    named = load(news, options=options).train.inputs
    expected = tokens.encode(tokens.read([tiny / "tokenizer.json"], "tiny"), texts, LENGTH)
    assert torch.equal(named, expected)
    # The one that belongs to the model serves where none is named; a local copy of a hub id too.
    assert torch.equal(load(news, None, {"length": LENGTH}, str(tiny)).train.inputs, named)
    copy = tmp_path / "root" / "owner" / "tiny"
    copy.mkdir(parents=True)
    content = (tiny / "tokenizer.json").read_text("utf-8")
    (copy / "tokenizer.json").write_text(content, "utf-8")
    from_root = {"length": LENGTH, "tokenizer": "owner/tiny"}
    assert torch.equal(load(news, tmp_path / "root", from_root).train.inputs, named)
    # What is in the files counts, not where they are.
    edited = json.loads(content)
    numbers = edited["model"]["vocab"]
    numbers["##e"], numbers["##s"] = numbers["##s"], numbers["##e"]
    (copy / "tokenizer.json").write_text(json.dumps(edited), "utf-8")
    assert not torch.equal(load(news, tmp_path / "root", from_root).train.inputs, named)

    vocabulary = tokens.read([tiny / "tokenizer.json"], "tiny").get_vocab()
    (tmp_path / "words").mkdir()
    words = sorted(vocabulary, key=vocabulary.__getitem__)
    (tmp_path / "words" / "vocab.txt").write_text("\n".join(words) + "\n", "utf-8")
    old = {"length": LENGTH, "tokenizer": str(tmp_path / "words")}
    assert torch.equal(load(news, options=old).train.inputs, named)
    (tmp_path / "words" / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert not torch.equal(load(news, options=old).train.inputs, named)  # capitals are unknown


def test_the_tokenizer_agrees_with_transformers(tiny):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tiny, pad_token="[PAD]")
    texts = texts_of(9)
    padded = theirs(texts, padding="max_length", truncation=True, max_length=LENGTH)
    mine = tokens.encode(tokens.read(tokens.find(str(tiny)), "tiny"), texts, LENGTH)
    assert mine.tolist() == padded["input_ids"]


def test_padding_tokens_of_other_tokenizers(tmp_path, tiny):
    content = json.loads((tiny / "tokenizer.json").read_text("utf-8"))
    content["padding"] = None
    vocabulary = content["model"]["vocab"]
    vocabulary["[FILL]"] = vocabulary.pop("[PAD]")
    content["added_tokens"] = []
    (tmp_path / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    files = [tmp_path / "tokenizer.json"]
    with pytest.raises(BadValue, match="a tokenizer that has a padding token"):
        tokens.read(files, "other")
    settings = tmp_path / "tokenizer_config.json"
    settings.write_text('{"pad_token": {"content": "[FILL]"}}')
    assert tokens.read([*files, settings], "other").padding["pad_token"] == "[FILL]"


def test_tokenizers_that_cannot_be_had(tmp_path, no_network, monkeypatch):
    write_texts(tmp_path / "news", {"train": texts_of(5), "test": texts_of(2)})
    news = str(tmp_path / "news")
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    for source, message in (
        ("a/b/c", "no such folder.*valid: train, a folder with tokenizer.json or vocab.txt"),
        ("owner/name", "the hub cannot be reached"),
        (str(tmp_path / "empty"), "it has neither file"),
        (str(tmp_path / "broken"), "EOF"),
    ):
        with pytest.raises(BadValue, match=f"^data.tokenizer: .*{message}"):
            load(news, options={"tokenizer": source})
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(
        BadValue, match=r"it needs tokenizers.*pip install 'parley-learning\[text\]'"
    ):
        load(news)


def test_agents_with_folders_of_texts_need_one_tokenizer(tmp_path, tiny):
    for name, n in (("a", 3), ("b", 4)):
        write_texts(tmp_path / name, {"train": texts_of(n)})
    folders = [tmp_path / "a", tmp_path / "b"]
    with pytest.raises(BadValue, match=r"data.tokenizer: 'train'.*that all of them share"):
        own.load(dict(enumerate(folders)))
    found = own.load(dict(enumerate(folders)), options={"length": 8}, tokenizer=str(tiny))
    shares = found.samples
    assert [tuple(share.inputs.shape) for share in shares] == [(3, 8), (4, 8)]
    with pytest.raises(BadValue, match="it has text"):
        from_user([datasets.load_dataset(str(tmp_path / "a"))["train"]])


def test_real_news_learn(shared_data, tmp_path):
    """A few real texts through the whole chain: gradient descent lowers the loss."""
    if not (shared_data / "fancyzhx" / "ag_news").is_dir():
        pytest.skip(f"no fancyzhx/ag_news in {shared_data}")
    for file in (shared_data / "fancyzhx" / "ag_news" / "data").iterdir():
        folder = tmp_path / "fancyzhx" / "ag_news" / "data"
        folder.mkdir(parents=True, exist_ok=True)
        parquet.write_table(parquet.read_table(file).slice(0, 400), folder / file.name)
    data = load("ag_news", tmp_path, {"vocabulary": 1000, "length": 48})
    assert data.class_names == ("World", "Sports", "Business", "Sci/Tech")
    assert (data.train.inputs[:, 0] == 2).all() and data.train.inputs.shape == (400, 48)
    torch.manual_seed(0)
    task = Task(build("bert-mini", (48,), 4, vocabulary=1000, dropout=0.0))
    loop = engines.build("loop", task)
    batches = Batches([data.train.take(range(8))], [0], 8, data.transform, seed=0)
    x_AD, losses = task.start()[None], []
    for step in range(4):
        loss_A, g_AD = loop.gradients(x_AD, batches.at(step), [0], [0])
        x_AD = x_AD - 0.01 * g_AD
        losses.append(float(loss_A[0]))
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0] - 0.02
