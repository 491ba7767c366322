"""Recorded prompts: where they differ from ours, for people."""

from pytest_promptfmt.core.recorded import PromptDifference, RecordedPrompts


def test_a_difference_is_shown_with_the_text_around_it_and_counted_from_one() -> None:
    start = "x" * 50
    shown = str(PromptDifference(where="state 1", offset=50, recorded=f"{start}a", ours=f"{start}b{'y' * 40}")).split(
        "\n"
    )
    assert shown == [
        "state 1: the recorded and the rendered prompt differ at character 51",
        f"  recorded: …{'x' * 40 + 'a'!r}",
        f"  ours:     …{'x' * 40 + 'b' + 'y' * 39!r}…",
    ]


def test_prompts_are_counted_by_what_became_of_them() -> None:
    found = RecordedPrompts(states=4)
    assert found.summary == "no recorded prompt in 4 recorded requests"
    found.add(None, is_cut=False)
    found.add(None, is_cut=True)
    assert found.summary == "reproduces all 2 recorded prompts, 1 of them cut by a window"
    found.add(PromptDifference(where="state 3", offset=0, recorded="", ours="a"), is_cut=False)
    assert found.summary == "1 of 3 recorded prompts differ from the rendered ones"
