import pytest

from neuralfunctionals.files.budget import MAX_MEMORY, memory_limit, parse_size, require_memory


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("500", 500),
        ("3k", 3 << 10),
        ("500M", 500 << 20),
        ("8G", 8 << 30),
        ("1 T".replace(" ", ""), 1 << 40),
        ("2GiB", 2 << 30),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1G", "lots", "8X", "1e9", "9" * 20])
def test_other_sizes_are_refused(text):
    with pytest.raises(ValueError, match=r"such as 500M or 8G, but got"):
        parse_size(text)


def test_what_fits_passes_and_what_does_not_names_a_limit_that_is_enough(monkeypatch):
    monkeypatch.delenv(MAX_MEMORY, raising=False)
    assert memory_limit() == 2 << 30
    require_memory(2 << 30, "This")
    with pytest.raises(ValueError, match=r"This would take 5.25 GiB of memory, .* --max-memory 6G or NF_MAX_MEMORY=6G"):
        require_memory(int(5.25 * 2**30), "This")
    monkeypatch.setenv(MAX_MEMORY, "6G")
    require_memory(int(5.25 * 2**30), "This")


def test_a_small_file_may_not_grow_large(monkeypatch):
    monkeypatch.delenv(MAX_MEMORY, raising=False)
    require_memory(200 << 20, "This", stored=100)  # small enough to be harmless
    require_memory(1 << 30, "This", stored=10 << 20)
    with pytest.raises(ValueError, match=r"1048576 times its size on disk \(1 KiB\).* --max-memory 8G"):
        require_memory(1 << 30, "This", stored=1 << 10)
    monkeypatch.setenv(MAX_MEMORY, "8G")
    require_memory(1 << 30, "This", stored=1 << 10)
