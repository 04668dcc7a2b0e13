import re
import time

import pytest

from neuralfunctionals.progress import Progress, ProgressLines

LINE = re.compile(r"(\w+): (\d+)/(\d+) \((\d+)%\), ([\d.e+]+) (\w+)/s, (\d+:\d\d:\d\d) left(?:, (.*))?")


class Clock:
    """Time that passes when it is told to."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def lines_of(capsys):
    out, err = capsys.readouterr()
    assert out == ""
    return [LINE.fullmatch(line).groups() for line in err.splitlines()]


@pytest.mark.parametrize("total", [1, 3, 20, 100, 1000, 1010])
def test_a_line_for_every_twentieth_of_the_work_and_for_the_end(capsys, total):
    clock = Clock()
    lines = ProgressLines("fitting", "items", clock=clock)
    lines.start()
    for done in range(1, total + 1):
        clock.now += 1e-3
        lines.update(done, total, "40.1 dB")
    found = lines_of(capsys)
    numbers = [int(line[1]) for line in found]
    assert len(numbers) == min(20, total)
    assert numbers[-1] == total
    assert [int(line[3]) for line in found] == [round(100 * n / total) for n in numbers]
    assert {(line[0], line[2], line[5], line[7]) for line in found} == {("fitting", str(total), "items", "40.1 dB")}


def test_a_line_when_ten_seconds_have_passed_with_rate_and_time_left(capsys):
    clock = Clock()
    lines = ProgressLines("training", "steps", clock=clock)
    for done in range(1, 25):
        clock.now += 1
        lines.update(done, 10_000)
    found = lines_of(capsys)
    assert [line[1] for line in found] == ["11", "21"]
    assert [line[4] for line in found] == ["1", "1"]
    assert [line[6] for line in found] == ["2:46:29", "2:46:19"]
    lines.update(24, 10_000)
    assert lines_of(capsys) == []


def test_what_was_done_before_does_not_count_for_the_rate(capsys):
    clock = Clock()
    lines = ProgressLines("training", "steps", clock=clock)
    lines.start(900)
    clock.now += 2
    lines.update(950, 1000)
    ((*_, rate, _, left, _),) = lines_of(capsys)
    assert (rate, left) == ("25", "0:00:02")


def test_work_of_unknown_length_is_told_by_time_alone(capsys):
    clock = Clock()
    lines = ProgressLines("train-images", "bytes", clock=clock)
    lines.start()
    for done in range(100, 2500, 100):
        clock.now += 1
        lines.update(done, 0)
    assert capsys.readouterr().err.splitlines() == [
        "train-images: 1000 bytes, 100 bytes/s",
        "train-images: 2000 bytes, 100 bytes/s",
    ]


def test_works_side_by_side_are_told_in_lines_of_their_own(capsys):
    with Progress(from_zero=True) as progress:
        for done in (0, 1, 2):
            progress.update("editor", done, 2)
            progress.update("reader", done, 1 + done)
    assert [line[:3] for line in lines_of(capsys)] == [
        ("editor", "1", "2"),
        ("reader", "1", "2"),
        ("editor", "2", "2"),
        ("reader", "2", "3"),
    ]


def test_time_that_a_work_waited_does_not_count_for_its_rate(capsys):
    with Progress(from_zero=True) as progress:
        progress.update("reader", 0, 2)
        time.sleep(0.5)
        progress.update("reader", 0, 2)
        progress.update("reader", 1, 2)
    assert float(lines_of(capsys)[0][4]) > 2.5
