"""Files that appear whole, checksums beside them, and what kills leave."""

import itertools
import os
import signal
import subprocess
import time

import pytest

from neuralfunctionals.files.checksums import SUMS, read_intact, read_sums, require_intact
from neuralfunctionals.files.writing import write_new, write_recorded


def kill_writer(path, seconds):
    """A process that writes a file over and over, and is killed meanwhile."""
    writer = os.fork()
    if writer == 0:
        for n in itertools.count():
            write_recorded(path, bytes([n % 256]) * 300_000)
    time.sleep(seconds)
    os.kill(writer, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(writer, 0)[1]) == signal.SIGKILL


def test_a_killed_writer_leaves_a_whole_file_with_its_checksum_and_the_next_one_tidies_up(tmp_path):
    path = tmp_path / "last.ckpt"
    write_recorded(path, bytes(300_000))
    for trial in range(20):
        kill_writer(path, 0.03 + 0.0013 * trial)
        data = read_intact(path, "")  # raises if the checksum does not match
        assert len(data) == 300_000
        assert len(set(data)) == 1
    (tmp_path / f".tmp-{os.uname().nodename}-{os.getpid()}.00ff-last.ckpt").write_bytes(b"half")
    write_recorded(path, b"end")
    assert sorted(p.name for p in tmp_path.iterdir()) == [SUMS, "last.ckpt"]
    assert list(read_sums(tmp_path)) == ["last.ckpt"]
    assert len(read_sums(tmp_path)["last.ckpt"]) == 1
    check = subprocess.run(["sha256sum", "-c", SUMS], cwd=tmp_path, capture_output=True, text=True)
    assert check.stdout == "last.ckpt: OK\n"


def test_both_the_old_and_the_new_file_are_accepted_while_one_replaces_the_other(tmp_path, monkeypatch):
    """A kill between the list and the file must not look like damage; nor with a file from before there were lists."""
    path = tmp_path / "a"
    path.write_bytes(b"old")  # of an older release
    lists, replace = [], os.replace

    def watch(source, target):
        lists.append((tmp_path / SUMS).read_text() if target == path else "")
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    write_recorded(path, b"new")
    monkeypatch.undo()
    assert [bool(text) for text in lists] == [False, True, False]  # the list, the file, the list
    (tmp_path / SUMS).write_text(lists[1])
    for content in (b"old", b"new"):
        path.write_bytes(content)
        assert read_intact(path, "") == content
    path.write_bytes(b"odd")
    with pytest.raises(ValueError, match=r"a is damaged: .* listed in SHA256SUMS. Do this. If you changed it"):
        require_intact(path, "Do this.")


def test_lists_of_other_forms_and_files_that_are_not_listed_are_accepted(tmp_path):
    (tmp_path / SUMS).write_bytes(b"\xff\xfe\nSHA256 (a) = 00\n\nshort  a\n" + b"0" * 64 + b"  b\n")
    (tmp_path / "a").write_text("a")
    assert read_intact(tmp_path / "a", "") == b"a"
    assert read_sums(tmp_path) == {"b": ["0" * 64]}


def test_a_new_file_is_written_once(tmp_path):
    assert write_new(tmp_path / "a", b"first")
    assert not write_new(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first"
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_nothing_is_written_through_a_link_at_the_temporary_name(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    monkeypatch.setattr("neuralfunctionals.files.writing.secrets.token_hex", lambda count: "00")  # as if guessed
    (tmp_path / f".tmp-{os.uname().nodename}-{os.getpid()}.00-a").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "a", b"data")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "a").exists()
