"""The task styles of eval-framework 0.15.4 as formats: the same prompts and candidates for tasks from YAML.

The cue is a gen prefix, as it is the beginning of the assistant's turn there. Styles with an abstention score one more
choice, which their description quotes.
"""

from __future__ import annotations

from pytest_promptfmt.formats.format import Format

CITATION = "https://pypi.org/project/eval-framework/0.15.4/ (eval_framework.tasks.task_style)"

_ABSTENTION = "I don't know."
_PREAMBLE = (
    f'Answer only where you are sure: a wrong answer costs points, and "{_ABSTENTION}" costs nothing. It is always'
    " allowed.\n\n"
)


def _style(name: str, summary: str, *, labelled: bool, notes: str = "", **more: str) -> Format:
    return Format(
        name=name,
        choice_labels="letters" if labelled else None,
        section_separator="",
        choices_prefix="\n" if labelled else "",
        answer_prompt="\n",
        gen_prefix="Answer:",
        summary=summary,
        citation=CITATION,
        notes=notes,
        **more,  # type: ignore[arg-type]
    )


EF_MC = _style("ef_mc", "MCStyle: lettered options, the letter is scored.", labelled=True)
EF_MC_OLMES = _style(
    "ef_mc_olmes",
    "MCStyle as OLMES writes it: a blank before each label.",
    labelled=True,
    label_prefix=" ",
)
EF_MC_COMPLETION = _style(
    "ef_mc_completion",
    "MCCompletionStyle: lettered options, the text of an answer is generated.",
    labelled=True,
    output_type="generate_until",
    answer_as="text",
    notes="Scored byte for byte there: set filters of your own where models add words.",
)
EF_CLOZE = _style("ef_cloze", "ClozeStyle: no options, the text of each answer is scored.", labelled=False)
EF_BPB = _style(
    "ef_bpb",
    "BPBStyle: as ef_cloze, and only the right answer is scored.",
    labelled=False,
    scored="gold",
    notes="For bits per byte; accuracy over one choice says nothing.",
)
EF_MC_IDK = _style(
    "ef_mc_idk",
    "MCStyle with a way out as last choice.",
    labelled=True,
    abstention=_ABSTENTION,
    description=_PREAMBLE,
    notes="The words of the description are ours; eval-framework's differ from task to task.",
)
EF_CLOZE_IDK = _style(
    "ef_cloze_idk",
    "ClozeStyle with a way out as last choice.",
    labelled=False,
    abstention=_ABSTENTION,
    description=_PREAMBLE,
    notes="The words of the description are ours; eval-framework's differ from task to task.",
)

EVAL_FRAMEWORK_FORMATS: tuple[Format, ...] = (
    EF_MC,
    EF_MC_OLMES,
    EF_MC_COMPLETION,
    EF_CLOZE,
    EF_BPB,
    EF_MC_IDK,
    EF_CLOZE_IDK,
)
