"""The command as a user meets it: what it prints, what it writes, how it says no."""

import sys

import pytest

from parley.cli.main import main


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Runs the command in this process and in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["parley", *" ".join(arguments).split()])
        with pytest.raises(SystemExit) as exit_:
            main()
        shown = capsys.readouterr()
        return exit_.value.code, shown.out, shown.err

    return run


@pytest.fixture
def fails(command, tmp_path):
    """Runs a command that must fail as every one does; returns its message."""
    (tmp_path / "apart.txt").write_text("0 1\n2 3\n")
    (tmp_path / "asymmetric.txt").write_text("0 -> 1 0.5\n1 -> 0 0.25\n1 2 0.25\n")
    (tmp_path / "broken.toml").write_text("agents = [")
    (tmp_path / "unknown.toml").write_text("agentz = 3")
    (tmp_path / "inner.toml").write_text('[algorithm]\nname = "ngc"\nalhpa = 0.5')
    (tmp_path / "schedule.toml").write_text('lr_decay = "linear:to=2"')
    (tmp_path / "stop.toml").write_text('stop_when = "loss:patience=0"')
    (tmp_path / "keep.toml").write_text("keep = true")
    (tmp_path / "local.toml").write_text('[algorithm]\nname = "dpsgd"\nlocal_steps = true')

    def run(*arguments):
        before = tree(tmp_path)
        code, out, err = command(*arguments)
        assert code == 2 and out == "" and tree(tmp_path) == before
        assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1
        return err.removeprefix("error: ").strip()

    return run


def tree(folder):
    return {path: path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}
