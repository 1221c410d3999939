"""``parley train``: what it prints and writes, and how it resumes."""

import json
from pathlib import Path

import parley
from parley import Experiment
from parley.files import parse_json

SMALL = "--agents 3 --model logistic --epochs 2 --batch 200 --gossip-rounds 2"
SUMMARY = {
    "algorithm", "agents", "epochs", "loss", "accuracy_mean_model", "accuracy_own",
    "accuracy_after_gossip", "consensus_distance", "bytes_models", "bytes_cross_gradients",
    "seconds", "gradients_per_second", "peak_memory_mb", "out",
}  # fmt: skip
TIMES = {"seconds", "gradients_per_second", "peak_memory_mb"}


def records(out):
    lines = (Path(out) / "records.jsonl").read_text().splitlines()
    return [{k: v for k, v in parse_json(line).items() if k not in TIMES} for line in lines]


def test_train_takes_all_promised_flags_and_prints_one_json_object(command):
    code, out, err = command(
        "train --data digits --model logistic --algorithm ngc --alpha 0.5 --agents 3",
        "--topology ring --partition iid --epochs 2 --batch 200 --lr 0.2 --momentum 0.5",
        "--gamma 0.9 --seed 1 --workers 1 --out run --json --data-root nowhere",
    )
    assert code == 0 and out.count("\n") == 1
    summary = json.loads(out)
    assert summary.keys() >= SUMMARY
    assert (summary["algorithm"], summary["agents"], summary["epochs"]) == ("ngc", 3, 2)
    assert summary["out"] == "run" and parse_json(Path("run/summary.json").read_text()) == summary
    assert "epoch 2 of 2: accuracy" in err  # chatter goes to stderr
    written = Experiment.from_toml(Path("run/experiment.toml").read_text())
    expected = Experiment.of(
        model="logistic", alpha=0.5, agents=3, partition="iid", epochs=2, batch=200, lr=0.2,
        momentum=0.5, gamma=0.9, seed=1, data_root="nowhere",
    )  # fmt: skip
    assert written == expected
    assert {k: v for k, v in records("run")[-1].items() if k in SUMMARY}.items() <= summary.items()
    code, again, _ = command("train --resume --out run --json --seed 1 run/experiment.toml")
    assert code == 0 and json.loads(again) == summary  # what is done is only shown


def test_an_experiment_file_gives_the_same_run_and_flags_win(command):
    flags = "--variant as-run --momentum 0.9 --algorithm cga --out first"
    assert command("train", SMALL, flags)[0] == 0
    text = Path("first/experiment.toml").read_text()
    assert "qp_floor = 0.5" in text and "variant" not in text
    assert command("train first/experiment.toml --out second")[0] == 0
    assert Path("second/experiment.toml").read_text() == text
    assert records("second") == records("first")
    # A plain file that says little, and flags on top of it.
    Path("mine.toml").write_text(
        'algorithm = "ngc"\nalpha = 0.25\nlr = 0.3\nmodel = "logistic"\n'
        "agents = 3\nepochs = 1\nbatch = 400\ngossip_rounds = 0\n"
    )
    assert command("train mine.toml --lr 0.4 --algorithm compngc --out third")[0] == 0
    third = Experiment.from_toml(Path("third/experiment.toml").read_text())
    assert third == Experiment.of(
        algorithm="compngc", alpha=0.25, lr=0.4, model="logistic", agents=3, epochs=1, batch=400,
        gossip_rounds=0,
    )  # fmt: skip
    assert (
        command("train first/experiment.toml --variant as-printed --epochs 1 --out fourth")[0] == 0
    )
    fourth = Experiment.from_toml(Path("fourth/experiment.toml").read_text())
    assert fourth.algorithm == parley.CGA(momentum=0.9)


def test_a_folder_is_never_overwritten(command, fails):
    assert command("train", SMALL, "--out run")[0] == 0
    assert "already holds this experiment" in fails("train", SMALL, "--out run")
    assert "holds a different experiment (they differ in lr" in fails(
        "train", SMALL, "--out run --lr 0.7 --resume"
    )
    assert "is not empty" in fails("compare", SMALL, "--out run")


def test_a_summary_on_a_part_of_the_test_samples_says_so(command):
    _, out, _ = command("train", SMALL, "--out run")
    assert "tested on" not in out
    records = Path("run/records.jsonl")
    first, last = records.read_text().splitlines()
    assert json.loads(last)["test_samples"] == 360
    changed = json.loads(last) | {"test_samples": 240, "test_samples_absent": 120}
    records.write_text(f"{first}\n{json.dumps(changed)}\n")
    _, out, _ = command("train", SMALL, "--out run --resume")
    assert "240 of 360 samples" in out


def test_without_a_folder_a_new_one_is_made(command):
    for number in (1, 2):
        code, out, _ = command("train", SMALL, "--epochs 1")
        assert code == 0 and "accuracy, averaged model" in out
        assert Path(f"runs/ngc-digits-00{number}/summary.json").exists()


def test_a_new_folder_has_a_name_that_every_system_allows(command):
    code, out, _ = command(f"train {SMALL} --algorithm ngc+topk:0.1")
    assert code == 0 and "runs/ngc+choco+topk-0.1-digits-001" in out


def test_ctrl_c_says_how_to_continue(command, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("parley.watch.progress.TrainingProgress.__call__", stop)
    code, out, err = command("train", SMALL, "--out run")
    assert code == 130 and out == ""
    assert "to continue: the same command with --out run --resume" in err
    monkeypatch.setattr("parley.experiment.read_file", stop)
    code, out, err = command("train some.toml")
    assert (code, out, err) == (130, "", "")


def test_a_diverging_run_stops_and_keeps_the_last_good_checkpoint(command):
    # The step is 1000 times too long: weights grow a thousandfold in each of the epochs' one step.
    huge = "--lr 1000 --weight-decay 1 --epochs 40 --algorithm dpsgd --batch 2000 --out run"
    code, out, err = command("train", SMALL, huge)
    assert code == 2 and out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    kept = int(line.partition("the checkpoint after epoch ")[2].split()[0])
    assert line.startswith("error: loss: ") and ("inf at" in line or "nan at" in line)
    assert f" at agent 0, step {kept + 1} of 40: training has diverged" in line
    assert "try a smaller lr (now 1000)" in line
    assert sorted(p.name for p in Path("run/checkpoint").iterdir())[-1] == f"epoch-{kept:06d}"
    assert [r["epoch"] for r in records("run")] == list(range(1, kept + 1))
    assert "NaN" not in Path("run/records.jsonl").read_text()
    # It can be resumed, to the same end.
    code, out, err = command("train", SMALL, huge, "--resume")
    assert code == 2 and err.splitlines()[-1] == line
