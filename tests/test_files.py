"""Files from untrusted sources: whatever stands in the place of one, reading it comes to an end."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from parley.files import Unreadable, lines_of, parse_toml, read_bytes, read_text, regular
from tests.fuzz.damage import SPECIAL


@pytest.fixture(autouse=True)
def no_endless_wait() -> Iterator[None]:
    """A pipe that is waited for would hold up all tests."""

    def stop(*_: object) -> None:
        raise AssertionError("no end after 60 seconds")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("what", sorted(SPECIAL))
def test_only_regular_files_of_bounded_size_are_read(what: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    SPECIAL[what](path)
    before = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0
    for read in (read_text, read_bytes, lambda path: list(lines_of(path, most=1 << 27))):
        with pytest.raises(Unreadable) as refused:
            read(path)
        assert str(tmp_path) not in str(refused.value)
    if before:
        assert len(list(Path("/proc/self/fd").iterdir())) == before, "a file was left open"


def test_links_are_followed_only_where_that_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("x")
    (tmp_path / "link").symlink_to("there")
    assert read_text(tmp_path / "link") == "x"
    with pytest.raises(Unreadable), regular(tmp_path / "link", follow=False):
        pass


def test_lines_are_whole_and_of_bounded_length(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\n" + b"x" * 40 + b"\n\nfour\nunfinish")
    assert list(lines_of(path)) == [b"one", b"x" * 40, b"", b"four"]
    assert list(lines_of(path, longest=10)) == [b"one", b"", b"", b"four"]
    assert list(lines_of(path, longest=8)) == [b"one", b"", b"", b"four", b""]
    path.write_bytes(b"1234567\n" * 3)  # as long as may be, with its end
    assert list(lines_of(path, longest=8)) == [b"1234567"] * 3
    some = lines_of(path, most=17)
    assert [next(some), next(some)] == [b"1234567"] * 2
    with pytest.raises(Unreadable, match="more than"):
        next(some)


DEEP = {
    "a key": "a." * 300_000 + "a = 1",
    "a key with quotes and spaces": "'a' . \"a\"\t." * 10_000 + "a = 1",
    "a header": "[" + "a." * 300_000 + "a]",
    "short keys in tables": "x = " + ("{" + "a." * 20 + "a = ") * 50 + "1" + "}" * 50,
    "a number": "seed = 0x" + "f" * 100_000,
}


@pytest.mark.parametrize("what", DEEP)
def test_toml_that_would_be_read_for_hours_or_cannot_be_shown_is_refused(what: str) -> None:
    with pytest.raises(Unreadable, match=r"nested too deeply|too long"):
        parse_toml(DEEP[what])


def test_toml_with_many_dots_that_are_no_key_is_read() -> None:
    text = "signature = '" + "ab+/" * 300 + "." + "cd" * 300 + "'\nlist = [" + "0.5, " * 1000 + "]"
    found = parse_toml(f"a.b.c = 1\n{text}")
    assert found["a"] == {"b": {"c": 1}} and len(found["list"]) == 1000
