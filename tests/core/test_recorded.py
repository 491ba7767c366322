"""Recorded prompts: where they differ from ours, for people."""

from pytest_promptfmt.core.recorded import PromptDifference, RecordedPrompts


def test_a_difference_is_shown_with_the_text_around_it_and_counted_from_one() -> None:
    start = "x" * 50
    shown = str(PromptDifference(where="state 1", offset=50, recorded=f"{start}a", ours=f"{start}b{'y' * 40}")).split(
        "\n"
    )
    assert shown == [
        "state 1: the rendered prompt differs from the recorded one at character 51",
        f"  recorded: …{'x' * 40 + 'a'!r}",
        f"  ours:     …{'x' * 40 + 'b' + 'y' * 39!r}…",
    ]


def test_prompts_are_counted_by_what_became_of_them() -> None:
    found = RecordedPrompts(states=4)
    assert found.summary == "4 recorded requests, but none has a prompt"
    found.add(None, is_cut=False)
    found.add(None, is_cut=True)
    assert (
        found.summary
        == "all 2 rendered prompts are equal to the recorded ones; 1 of them were cut to the model's window"
    )
    found.add(PromptDifference(where="state 3", offset=0, recorded="", ours="a"), is_cut=False)
    assert found.summary == "1 of 3 rendered prompts differ from the recorded ones"
