"""The answer that a prompt requests is read from its own text: forms, what wraps the answer, and labels."""

import pytest

from pytest_promptfmt.study.contract import contract_of, without_begun
from pytest_promptfmt.study.requested_labels import joined_by_or, lists


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Don't guess. Write 'ANSWER: LETTER', where LETTER is one of ABCD.", "ANSWER: 7"),
        ('The last line has this form:\n"Final answer: [number]"', "Final answer: 7"),
        ("Termine par « Réponse : X ».", " Réponse : 7 "),
        ('Concludi con "La risposta è (X)".', "La risposta è (7)"),
        ("以“答案是X”的格式回答。", "答案是7"),
        ("Give the result on the last line as #### X.", "#### 7"),
        ('Schreibe in die letzte Zeile nur "#### " und die Zahl.', "#### 7"),
        ("Remember, to end your answer with Final Answer: <answer>.", "Final Answer: 7"),
        ("Put your final answer within \\boxed{}.", "\\boxed{7}"),
        ("Place the number inside <result></result> tags.", "<result>7</result>"),
        ("Write the answer between <answer> and </answer>.", "<answer>7</answer>"),
        ('Output your verdict in this format: "[[A]]" or "[[B]]".', "[[7]]"),
        ("Valid outputs are only:\n[[A]], [[B]], or [[C]]", "[[7]]"),
        ("Return the option letter inside double square brackets.", "[[7]]"),
        ('Return JSON like {"answer": "..."}.', '{"answer": "7"}'),
        ('Return JSON like {"answer": 3}.', '{"answer": 7}'),
        ('Antworte mit JSON: {"grund": "...", "antwort": "..."}', '{"antwort": "7"}'),
        ('Responde con un bloque de código:\n```json\n{"tema": "..."}\n```', '```json\n{"tema": "7"}\n```'),
        ("Überlege und ende mit dieser Zeile:\nAntwort: <Begriff>", "Antwort: 7"),
    ],
)
def test_the_answer_is_written_in_the_form_that_the_prompt_asks_for(text: str, written: str) -> None:
    assert [form.written("7") for form in contract_of(text).wrapped] == [written]


@pytest.mark.parametrize(("answer", "written"), [("(B)", "The answer is (B)"), ("(1, 2)", "The answer is ((1, 2))")])
def test_a_label_in_the_brackets_of_the_form_has_them_once(answer: str, written: str) -> None:
    forms = contract_of('End with "The answer is (X)", where X is the correct letter choice.').wrapped
    assert [form.written(answer) for form in forms] == [written]


@pytest.mark.parametrize(
    "text",
    [
        "The sign said 'Result: X'.",
        'She asked "what is X?"',
        "Solve \\boxed{x} = 2.",
        "<b>bold</b>",
        "Give the word in square brackets.",
        'It is {"a": 1}.',
        "<p>Wer war das?</p>\nAntwort: <footer>",
    ],
)
def test_quotations_tags_and_formulas_that_ask_for_nothing_are_no_form(text: str) -> None:
    assert contract_of(text).wrapped == ()


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("Answer with Y or N.", [("Y", "N")]),
        ("Responde con Sí o No.", [("Sí", "No")]),
        ('Reply exactly "SPAM" or "HAM" in capital letters.', [("SPAM", "HAM")]),
        ("Classify the tweet as one of: anger, joy, fear.", [("anger", "joy", "fear")]),
        ("Answer with one of entailment, neutral, contradiction.", [("entailment", "neutral", "contradiction")]),
        ("Output 1 if the text is toxic and 0 if it is not.", [("1", "0")]),
        ("Is the statement true or false?", [("true", "false")]),
        ("문장의 감정이 긍정인지 부정인지 답하세요.", [("긍정", "부정")]),
        ("Answer the question based on information from Wikipedia or books.", []),
        ("Use either the text or the table.", []),
    ],
)
def test_sets_of_labels_are_read_from_instructions(text: str, labels: list[tuple[str, ...]]) -> None:
    assert [form.labels for form in contract_of(text).of("labels")] == labels


@pytest.mark.parametrize(
    ("text", "is_certain"),
    [
        ("Antworte nur mit dem Buchstaben.", True),
        ("请只回答选项字母。", True),
        ("Give a letter and explain it.", False),
    ],
)
def test_a_letter_is_asked_for_in_several_languages(text: str, is_certain: bool) -> None:
    assert [form.is_certain for form in contract_of(text).of("letter")] == [is_certain]


def test_letters_that_only_describe_how_to_write_are_not_asked_for() -> None:
    assert contract_of("Answer in capital letters.").of("letter") == ()


def test_a_sentence_that_the_prompt_has_begun_continues_after_it() -> None:
    assert without_begun(["The answer is 7", "#### 7", "#### 7"], "The answer is") == [" 7", "#### 7"]


@pytest.mark.parametrize(
    ("text", "labels"),
    [("请回答是或否。", ("是", "否")), ("Answer yes or no.", ("yes", "no")), ("是否正确", ()), ("I know or yes.", ())],
)
def test_pairs_of_labels_are_words_and_chinese_ones_need_no_space(text: str, labels: tuple[str, ...]) -> None:
    assert tuple(label for form in contract_of(text).of("labels") for label in form.labels) == labels


def test_labels_are_read_from_long_texts_in_linear_time() -> None:
    for text in (" " * 60_000, "a, " * 20_000 + "or b?", "answer a or " * 15_000, "是或" * 3_000):
        assert len(list(joined_by_or(text))) <= 100
        contract_of(text[:6_000])


@pytest.mark.parametrize(
    "text",
    [
        "Hãy trả lời câu hỏi sau đây.",
        "Cevap ver: ürün iyi ama pahalı mı?",
        "Answer whether Muhammad Ali Jinnah is meant.",
        "Answer whether a Jew lives there.",
        "Rispondi se il testo dice dove vai domani.",
        "Дайте відповідь, чи є текст довгим.",
        "Odpowiedz, czy to opinia o hotelu.",
        "Responda se o que vai acontecer é bom.",
        "Odpovězte u otázky.",
    ],
)
def test_words_that_are_or_in_another_language_join_no_labels(text: str) -> None:
    assert list(joined_by_or(text)) == []


@pytest.mark.parametrize(
    ("text", "named"), [("Type of question:", []), ("Kies: is het vraag of zin?", ["vraag", "zin"])]
)
def test_of_joins_labels_in_dutch_alone(text: str, named: list[str]) -> None:
    found = lists(text, ["statement", "question", "vraag", "zin"])
    assert [label for form in found for label in form.labels][-2:] == named


def test_a_list_of_many_known_labels_without_or_is_read_at_once() -> None:
    labels = [f"label_{number}" for number in range(26)]
    (found,) = lists(f"See this list: [{', '.join(labels[:20])}].", labels)
    assert [*found.labels] == labels[:20]
    assert not found.is_closed
