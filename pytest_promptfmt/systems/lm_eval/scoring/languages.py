"""The word for "answer" in many languages, as answer sheets and prompts of their benchmarks write it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

ANSWER_WORDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ar": "الإجابة",
        "bn": "উত্তর",
        "ca": "Resposta",
        "cs": "Odpověď",
        "da": "Svar",
        "de": "Antwort",
        "el": "Απάντηση",
        "es": "Respuesta",
        "eu": "Erantzuna",
        "fa": "پاسخ",
        "fi": "Vastaus",
        "fr": "Réponse",
        "he": "תשובה",
        "hi": "उत्तर",
        "hu": "Válasz",
        "id": "Jawaban",
        "it": "Risposta",
        "ja": "答え",
        "ko": "정답",
        "nl": "Antwoord",
        "no": "Svaret",
        "pl": "Odpowiedź",
        "pt": "Resposta correta",
        "ro": "Răspuns",
        "ru": "Ответ",
        "sv": "Svaret är",
        "sw": "Jibu",
        "ta": "விடை",
        "te": "సమాధానం",
        "th": "คำตอบ",
        "tr": "Cevap",
        "uk": "Відповідь",
        "vi": "Đáp án",
        "zh": "答案",
    }
)
"""Language code to the word before a colon."""
