import string
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from pytest_promptfmt.core.errors import SnapshotError
from pytest_promptfmt.snapshots.paths import BESIDE, Claims, decode_name, encode_name

NAMES = st.text(st.characters(exclude_categories=())) | st.sampled_from(
    ["", ".", "..", "con", "NUL.txt", "com1", "a.", "a ", "a/b", "a\\b", "a:b", "%", "%25", "a%2Fb", ".hidden", "é"]
)


def test_usual_names_stay_as_they_are() -> None:
    path = BESIDE.path(Path("tasks/arc.yaml"), "arc_easy-v1.2@mcqa", "chat-llama3-5shot")
    assert path == Path("tasks/__prompts__/arc/arc_easy-v1.2@mcqa/chat-llama3-5shot.txt")


@given(NAMES)
def test_every_name_is_safe_on_every_system_and_can_be_read_back(name: str) -> None:
    encoded = encode_name(name)
    assert set(encoded) <= set(string.ascii_letters + string.digits + "_.@+=,-%")
    assert not encoded.startswith(".")
    assert not encoded.endswith(".")
    assert encoded.partition(".")[0].casefold() not in {"con", "prn", "aux", "nul", "com1", "lpt9"}
    assert decode_name(encoded).encode("utf-8", "surrogatepass" if encoded != name else "strict") or not name
    assert encode_name(decode_name(encoded)) == encoded or any("\ud800" <= character <= "\udfff" for character in name)


@given(NAMES, NAMES)
def test_different_names_are_different_files(one: str, other: str) -> None:
    assert (encode_name(one) == encode_name(other)) == (one == other)


def test_two_claims_of_one_file_name_both_claimants() -> None:
    claims = Claims()
    claims.claim(Path("a/__prompts__/x/arc/plain.txt"), "arc in x.yaml")
    claims.claim(Path("a/__prompts__/x/arc/plain.txt"), "arc in x.yaml")
    with pytest.raises(SnapshotError, match=r"arc in x\.yml and arc in x\.yaml would write the same"):
        claims.claim(Path("a/__prompts__/x/arc/plain.txt"), "arc in x.yml")


def test_names_that_differ_only_by_letter_case_collide() -> None:
    claims = Claims()
    claims.claim(BESIDE.path(Path("x.yaml"), "ARC", "plain"), "ARC")
    with pytest.raises(SnapshotError, match="differ only by letter case"):
        claims.claim(BESIDE.path(Path("x.yaml"), "arc", "plain"), "arc")


def test_names_longer_than_a_file_system_takes_are_refused() -> None:
    claims = Claims()
    claims.claim(BESIDE.path(Path("x.yaml"), "a" * 255, "p" * 251), "long")
    for task, profile in (("a" * 256, "plain"), ("a", "p" * 252), ("é" * 43, "plain")):
        with pytest.raises(SnapshotError, match="longer than 255 bytes"):
            claims.claim(BESIDE.path(Path("x.yaml"), task, profile), "too long")
