"""One description of a run, in and out of TOML, and how options lie over one another."""

from pathlib import Path
from typing import Any

import pytest

from parley import CGA, NGC, BadValue, CompNGC, Experiment, algorithms
from parley.algorithms import ALGORITHMS, AS_RUN, PARTS, find
from parley.algorithms.base import MomentumSGD
from parley.experiment import HOW, on_top, read_file
from parley.validation import kind_of


def error(call, *arguments, **options):
    with pytest.raises(BadValue) as caught:
        call(*arguments, **options)
    return str(caught.value)


# --- of ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given",
    [
        {"algorithm": "compngc", "alpha": 0.5, "momentum": 0.9},
        {"algorithm": {"name": "compngc", "alpha": 0.5, "momentum": 0.9}},
        {"algorithm": {"name": "compngc", "alpha": 0.1}, "alpha": 0.5, "momentum": 0.9},
        {"algorithm": CompNGC(alpha=0.5), "momentum": 0.9},
        {"algorithm": CompNGC, "alpha": "0.5", "momentum": "0.9"},
    ],
)
def test_an_algorithm_may_be_given_in_many_ways(given):
    assert Experiment.of(**given).algorithm == CompNGC(alpha=0.5, momentum=0.9)


def test_hyper_parameters_alone_belong_to_the_default_algorithm():
    assert Experiment.of(alpha=0.25).algorithm == NGC(alpha=0.25)
    assert Experiment.of(algorithm={"alpha": 0.25}).algorithm == NGC(alpha=0.25)


def test_an_algorithm_of_the_users_own_keeps_its_class_and_options():
    class Mine(MomentumSGD):
        name = "mine"
        title = "Mine"
        strength: int = 1

        def init(self, x_AD, hood, apart=False):
            raise NotImplementedError

        def step(self, state, hood, batch, lr):
            raise NotImplementedError

    made = Experiment.of(algorithm=Mine(strength=2), momentum=0.5)
    assert type(made.algorithm) is Mine
    assert (made.algorithm.strength, made.algorithm.momentum) == (2, 0.5)
    assert type(made.replace(seed=3, strength=4).algorithm) is Mine
    assert made.replace(seed=3, strength=4).algorithm.strength == 4
    assert made.replace(algorithm="cga").algorithm == CGA(momentum=0.5)
    assert error(Experiment.of, algorithm=Mine(), momentum=1).startswith("momentum: 1 is not")


HAVE_A_FORM_AS_RUN = ("dpsgd", "dmsgd", "ngc", "compngc", "cga", "compcga", "gut")


@pytest.mark.parametrize("name", HAVE_A_FORM_AS_RUN)
def test_as_run_sets_every_choice_that_an_algorithm_has(name):
    algorithm = Experiment.of(algorithm=name, variant="as-run").algorithm
    assert algorithm == ALGORITHMS[name].as_run()
    for option in AS_RUN.keys() & ALGORITHMS[name].options().keys():
        assert getattr(algorithm, option) == AS_RUN[option]
    assert algorithm.gradient_at == "mixed" and algorithm.nesterov


COMBINATIONS = ["ngc+qgm", "compngc+choco", "cga+gossip", "ngc+push-sum", "tracking+sign"]


@pytest.mark.parametrize("name", sorted({*ALGORITHMS, *COMBINATIONS} - {*HAVE_A_FORM_AS_RUN}))
def test_as_run_is_refused_where_it_could_set_only_a_part(name):
    said = error(Experiment.of, algorithm=name, variant="as-run")
    assert said == error(find(name).as_run)
    assert said.startswith("variant: 'as-run' is not valid")
    assert "as-run only for " + ", ".join(HAVE_A_FORM_AS_RUN) in said
    assert f"authors' choices apply to {find(name).name}" in said


@pytest.mark.parametrize("name", [*ALGORITHMS, *COMBINATIONS])
def test_as_printed_is_what_an_algorithm_is_by_itself(name):
    assert Experiment.of(algorithm=name, variant="as-printed").algorithm == find(name)()


def test_options_beside_a_variant_win():
    assert not Experiment.of(variant="as-run", nesterov=False).algorithm.nesterov
    given = NGC(nesterov=False, momentum=0.9)
    made = Experiment.of(variant="as-run", algorithm=given).algorithm
    assert (made.nesterov, made.momentum, made.gradient_at) == (False, 0.9, "mixed")


def test_a_variant_also_chooses_the_norm_layer():
    assert Experiment.of(model="cnn5", variant="as-run").model_options == {"evonorm": "hard-swish"}
    assert Experiment.of(model="cnn5", variant="as-printed").model_options == {"evonorm": "s0"}
    assert Experiment.of(model="cnn5").model_options == {}
    explicit = Experiment.of(model="cnn5", variant="as-run", model_options={"evonorm": "s0"})
    assert explicit.model_options == {"evonorm": "s0"}
    assert Experiment.of(model="mlp", variant="as-run").model_options == {}


def test_what_nobody_can_write_is_not_offered():
    with pytest.raises(BadValue) as refused:
        Experiment.of(agentz=3)
    assert "patience" in str(refused.value) and "from_python" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"agentz": 3}, "option: 'agentz' is not valid (did you mean 'agents'?); valid: agents,"),
        ({"algorithm": {"name": "ngc", "alhpa": 1}}, "option: 'alhpa' is not valid (did you mean"),
        (
            {"algorithm": "ncg"},
            "algorithm: 'ncg' is not valid (did you mean 'ngc'?); valid: adagossip,",
        ),
        ({"algorithm": 3}, "algorithm: 3 is not valid; valid: adagossip,"),
        ({"algorithm": "dpsgd", "alpha": 1}, "alpha: 1 is not valid (dpsgd has no such option"),
        ({"variant": "as-ran"}, "variant: 'as-ran' is not valid (did you mean 'as-run'?)"),
        ({"alpha": 1.5}, "alpha: 1.5 is not valid; valid: a number from 0 to 1"),
        ({"lr": float("inf")}, "lr: inf is not valid; valid: a number from 1e-20 to 1000000"),
        ({"lr": float("nan")}, "lr: nan is not valid; valid: a number from 1e-20 to 1000000"),
        ({"agents": 2.5}, "agents: 2.5 is not valid; valid: a whole number from 1 to 100000"),
        ({"agents": None}, "agents: missing; valid: a whole number from 1 to 100000"),
        ({"data": 3}, "data: 3 is not valid; valid: text"),
        ({"dtype": "float16"}, "dtype: 'float16' is not valid; valid: float32, float64"),
        ({"model_options": 3}, "model_options: 3 is not valid; valid: a table"),
        ({"lr_decay": "stp"}, "lr_decay: 'stp' is not valid; valid: constant, step"),
        ({"nesterov": "maybe"}, "nesterov: 'maybe' is not valid; valid: true or false"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_valid(options, message):
    assert error(Experiment.of, **options).startswith(message)


# --- TOML -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALGORITHMS)
def test_toml_holds_everything(name):
    variant = "as-run" if name in HAVE_A_FORM_AS_RUN else "as-printed"
    made = Experiment.of(
        algorithm=name, variant=variant, weight_decay=0.1, lr=1 / 3, model_options={"hidden": 8},
        data_root="some where", topology="circulant:1,5", agents=12, threads=2, steps_per_epoch=7,
        max_steps=1000, evaluate_every=3,
    )  # fmt: skip
    text = made.to_toml()
    again = Experiment.from_toml(text)
    assert again == made and again.to_toml() == text and again.same_as(made) == []
    for field in Experiment.model_fields:
        assert f"\n{field} = " in f"\n{text}" or f"\n[{field}]\n" in text, field


def test_toml_may_say_little():
    made = Experiment.from_toml('algorithm = "cga"\nqp_floor = 0.5\nagents = 4\nvariant = "as-run"')
    assert made.agents == 4 and made.algorithm == CGA.as_run()


def test_a_file_that_is_no_toml_is_refused(tmp_path):
    (tmp_path / "broken.toml").write_text("agents = [")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    assert "not TOML: Invalid value" in error(read_file, tmp_path / "broken.toml")
    assert "not text" in error(read_file, tmp_path / "binary.toml")
    assert "No such file" in error(read_file, tmp_path / "none.toml")
    assert "directory" in error(read_file, tmp_path)


# --- what lies over what ----------------------------------------------------------------------


def test_replace_changes_what_it_names_and_nothing_else():
    before = Experiment.of(algorithm=CompNGC(alpha=0.5, scope="tensor"), agents=4, lr=0.3)
    after = before.replace(seed=1)
    assert after.same_as(before) == ["seed"]
    assert after.algorithm == before.algorithm
    assert before.replace() == before
    assert before.replace(momentum=0.9).algorithm == CompNGC(
        alpha=0.5, scope="tensor", momentum=0.9
    )
    assert Experiment().replace(seed=1) == Experiment.of(seed=1)


def test_another_algorithm_keeps_the_options_that_it_has_too():
    before = Experiment.of(algorithm="ngc", alpha=0.5, momentum=0.9)
    assert before.replace(algorithm="cga").algorithm == CGA(momentum=0.9)
    assert before.replace(algorithm="compngc").algorithm == CompNGC(alpha=0.5, momentum=0.9)
    assert before.replace(algorithm="ngc").algorithm == NGC(alpha=0.5, momentum=0.9)
    assert before.replace(algorithm=CGA(momentum=0.1)).algorithm == CGA(momentum=0.1)
    assert error(before.replace, algorithm="dpsgd", alpha=1).startswith("alpha: 1 is not valid")


def test_a_variant_on_top_wins_over_what_is_written_below():
    as_run = Experiment.of(algorithm="cga", variant="as-run", momentum=0.9, model="cnn5")
    as_printed = as_run.replace(variant="as-printed")
    assert as_printed.algorithm == CGA(momentum=0.9)
    assert as_printed.model_options == {"evonorm": "s0"}
    assert as_printed.replace(variant="as-run") == as_run
    # A whole experiment written to TOML has every choice in it; the flag still wins.
    assert Experiment.from_toml(as_printed.to_toml()).replace(variant="as-run") == as_run
    assert not as_printed.replace(variant="as-run", nesterov=False).algorithm.nesterov


def test_another_model_keeps_no_options_of_the_old_one():
    before = Experiment.of(model="mlp", model_options={"hidden": 8})
    assert before.replace(model="lenet5").model_options == {}
    assert before.replace(model="mlp").model_options == {"hidden": 8}
    assert before.replace(model_options={"hidden": 9}).model_options == {"hidden": 9}
    unnamed = Experiment.of(model_options={"hidden": 8})
    assert unnamed.replace(model="mlp").model_options == {"hidden": 8}


def test_a_mistake_below_is_not_hidden_by_naming_the_algorithm_again():
    below = {"algorithm": "dpsgd", "alpha": 0.5}
    assert "dpsgd has no such option" in error(
        lambda: Experiment.of(**on_top(below, {"algorithm": "dpsgd"}))
    )


def test_how_a_run_is_carried_out_does_not_make_it_another():
    one = Experiment.of(agents=4)
    other = one.replace(workers=2, threads=2, device="cuda", engine="loop", data_root="x")
    assert one.same_as(other) == []
    carried_out = {"workers", "threads", "device", "engine", "data_root", "on_failure", "patience"}
    carried_out |= {"suspicious", "checkpoint_every", "keep"}
    assert carried_out == HOW
    assert one.replace(alpha=0.5, lr=1).same_as(one) == ["algorithm", "lr"]


def numeric_fields() -> list[tuple[str, Any]]:
    """Every number that an experiment may hold, those of all algorithms and parts included."""
    kinds = [*algorithms.ALGORITHMS.values(), *(algorithms.compose(part) for part in PARTS)]
    found = [
        ("experiment", Experiment.model_fields),
        *((kind.name, kind.options()) for kind in kinds),
    ]
    return [
        (f"{owner}.{name}", field)
        for owner, fields in found
        for name, field in fields.items()
        if kind_of(field) in (int, float)
    ]


@pytest.mark.parametrize(("name", "field"), numeric_fields())
def test_every_number_is_bounded_on_both_sides(name: str, field: Any) -> None:
    limits = {k for m in field.metadata for k in ("ge", "gt", "le", "lt") if hasattr(m, k)}
    assert limits & {"ge", "gt"}, name
    assert limits & {"le", "lt"}, name


DAMAGE: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": {"name": "ngc", "algorithm": 3}}, "algorithm: 3 is not valid"),
    ({"algorithm": {"algorithm": 3}}, "algorithm: 3 is not valid"),
    ({"model": 3, "variant": "as-run"}, "model: 3 is not valid; valid: logistic, mlp"),
    ({"model": 3}, "model: 3 is not valid"),
    (
        {"seed": 1e23},
        "seed: 1e+23 is not valid; valid: a whole number from 0 to 92",
    ),
    ({"seed": 10**23}, "seed: 1000"),
    ({"epochs": 1e20}, "epochs: 1e+20 is not valid; valid: a whole number from 1 to 1000000"),
    ({"lr": 1e300}, "lr: 1e+300 is not valid; valid: a number from 1e-20 to 1000000"),
    ({"lr": 1e-300}, "lr: 1e-300 is not valid"),
    ({"patience": 1e308}, "patience: 1e+308 is not valid; valid: a number from 0.1 to 31536000"),
    ({"agents": 10**9}, "agents: 1000000000 is not valid; valid: a whole number from 1 to 100000"),
    ({"gossip_rounds": 10**11}, "gossip_rounds: 100000000000 is not valid; valid: a whole number"),
    ({"agents": True}, "agents: True is not valid; valid: a whole number from 1 to 100000"),
    ({"keep": True}, "keep: True is not valid; valid: a whole number from 1 to 1000000"),
    (
        {"algorithm": "led", "local_steps": True},
        "local_steps: True is not valid; valid: a whole number from 1",
    ),
    (
        {"algorithm": "dpsgd+clip", "clip": True},
        "clip: True is not valid; valid: a number above 0",
    ),
    ({"algorithm": "dpsgd+sam", "rho": False}, "rho: False is not valid; valid: a number"),
    ({"from_python": 1}, "from_python: 1 is not valid"),
    ({"topology": "torus:99999999999x99999999"}, "agents: "),
    ({"topology": "spanning-tree:" * 3000 + "ring"}, "topology: "),
    ({"data": "a\0b"}, "data: 'a\\x00b' is not valid; valid: text without control characters"),
    ({"data_root": "x" * 5000}, "data_root: "),
    ({"lr_decay": "exponential:10", "epochs": 1000}, "lr_decay: 'exponential:10' is not valid"),
    ({"lr_decay": "step:1e300,0,0"}, "lr_decay: 'step:1e300,0,0' is not valid"),
    ({"partition": "skew:2"}, "partition: 'skew:2' is not valid; valid: skew:s with s from 0 to 1"),
    ({"partition": "classes:" + "9" * 30}, "partition: "),
    ({"model_options": {"hidden": 10**12}}, "model_options.hidden: 1000000000000 is not valid"),
    ({"algorithm": "fedavg", "local_steps": 10**12}, "local_steps: 1000000000000 is not valid"),
    ({"algorithm": "dpsgd", "weight_decay": 1e300}, "weight_decay: 1e+300 is not valid"),
]


@pytest.mark.parametrize(("options", "words"), DAMAGE)
def test_damage_is_refused_in_words(options: dict[str, Any], words: str) -> None:
    assert error(Experiment.of, **options).startswith(words)


@pytest.mark.parametrize(
    "text",
    [
        *("a = " + "[" * 5000, "seed = " + "9" * 5000, "a = 2020-01-01", "x" * (2 << 20)),
        *("seed = nan", "[algorithm]\nalgorithm = 3\n", "a = {" * 3000),
    ],
)
def test_a_damaged_file_is_refused_in_words(tmp_path: Path, text: str) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text(text)
    assert len(error(lambda: Experiment.of(**read_file(path)))) < 1000


def test_devices_are_not_read() -> None:
    for read in (
        lambda: read_file(Path("/dev/zero")),
        lambda: Experiment.of(topology="file:/dev/zero"),
    ):
        assert "not a regular file" in error(read)


def test_the_ends_of_what_is_valid_are_valid(tmp_path: Path) -> None:
    made = Experiment.of(
        agents=100_000, epochs=10**6, batch=10**6, lr=1e6, seed=2**63 - 1, gossip_rounds=10**5,
        patience=0.1, threads=1024, workers=10_000, evaluate_every=10**6, start_agent=99_999,
    )  # fmt: skip
    assert Experiment.from_toml(made.to_toml()) == made


def test_an_ignored_class_is_for_pixels_and_tokens() -> None:
    assert Experiment.of(task="segmentation", ignore_index=255).ignore_index == 255
    with pytest.raises(BadValue, match=r"ignore_index: 3 .*classification has neither pixels"):
        Experiment.of(ignore_index=3)
