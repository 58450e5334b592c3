"""Turns of phrase that mean something else in English, or must be read twice, are in no page, docstring or message."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

_COUNTED = "seconds|bytes|entries|requests|messages|keys|events|times|time|subscriptions|steps"
_KINDS = "option|valid|text|number|URL|UTF-8|JSON|MessagePack|array|pair|packet|program|regular file"

#: What must not be written, and what to write. A question may begin with "Who", and so may the heading of a page.
PHRASES = {
    r"\b[Ss]top(s|ped)? to \w+": "stop doing it: to stop in order to do it is the opposite",
    r"\b[Aa] MQTT\b": "an MQTT",
    r"\b[W]ho(ever)?\b(?![^.;:!?\"|]*\?)": "name the subject: a client that …, the caller, if a client …",
    r"\b[Bb]ehind (the|this) (version|leader|snapshot|topic|type|header|command|last|index|INDEX)\b": "after",
    r"\bso (long|many) ago\b": "for this long, this many … ago",
    r"\b(for|waits?) so long\b(?! (that|as)\b)": "for this long",
    rf"\bso (many|much) ({_COUNTED})\b(?! (that|as)\b)": "this many, this much; or say how many",
    r"\binside of\b": "inside",
    r"\bin the midst\b": "in the middle of, inside",
    rf"\bis no ({_KINDS})\b": "is not an option, is not valid, is not text",
    r"\b(that|which) (is|are) no (?!longer|more\b|better|less|other\b)\w+": "that is not a …",
    r"\bwhere \S+( \S+)? (is|was) due\b": "instead of …",
    r"\bnobody's business\b": "say to whom it does not matter, or that it is not defined",
    r"\bof (yours|ours)\b": "your, our; or name the owner",
}
#: The same for the server only, whose messages most people read in a log, one line at a time.
SERVER_PHRASES = {
    r"(?<![Tt]here )\b(is|are|was|were) no (?!longer\b|more\b)\w+": "is not a …, are not …",
    r"\bmeans? something with\b": "needs",
    r"\bstands? in line\b": "is in line",
}
FOLDERS = ("docs", "examples", "raft_client", "statestore_client", "tests", "tools")


def found(text: str, *, is_page: bool = False, phrases: Iterable[str] = PHRASES) -> list[tuple[int, str]]:
    """Line and words of each phrase, also where it is broken into two lines."""
    blank = re.sub(r"^#+ .*", lambda m: " " * len(m[0]), text, flags=re.MULTILINE) if is_page else text
    flowing = re.sub(r"\n[ \t]*(?:#:? ?)?", lambda m: " " * len(m[0]), blank)
    flowing = re.sub(r"(?<=\S) {2,}(?=\S)", lambda m: " " + "\0" * (len(m[0]) - 1), flowing)
    places = [i for i, character in enumerate(flowing) if character != "\0"]
    prose = flowing.replace("\0", "")
    hits = [(places[m.start()], m[0]) for phrase in phrases for m in re.finditer(phrase, prose)]
    return sorted((text.count("\n", 0, at) + 1, words) for at, words in hits)


def is_sentence(docstring: str) -> bool:
    """As far as that can be told without grammar."""
    words = docstring.split()
    goes_on = {"Also", "And", "But", "Even", "Nor", "Not", "Or"}
    return len(words) >= 3 and words[0] not in goes_on and docstring.endswith((".", "?", ")", "]", '"'))


def files() -> list[Path]:
    """All pages and sources, generated documentation and caches aside."""
    inside = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md")]
    outside = [*ROOT.glob("*.md"), *ROOT.glob("*.py")]
    return [p for p in (*inside, *outside) if not {"_build", "__pycache__", "node_modules"} & set(p.parts)]


def test_no_page_or_source_has_a_misleading_phrase() -> None:
    """No page, docstring, comment or message has a phrase of the table; a failure names file, line, words and what to
    write."""
    advice = "\n".join(f"  {phrase}: {instead}" for phrase, instead in PHRASES.items())
    places = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in files()
        for line, words in found(path.read_text(encoding="utf-8"), is_page=path.suffix == ".md")
        if path != Path(__file__)
    ]
    assert not places, "\n".join(["misleading phrases", *places, advice])


def test_the_server_speaks_plainly() -> None:
    """The server's messages, docstrings and comments have no phrase of its table."""
    advice = "\n".join(f"  {phrase}: {instead}" for phrase, instead in SERVER_PHRASES.items())
    places = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in (ROOT / "statestore_client" / "server").rglob("*.py")
        for line, words in found(path.read_text(encoding="utf-8"), phrases=SERVER_PHRASES)
    ]
    assert not places, "\n".join(["misleading phrases", *places, advice])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the key is no UTF-8", ["is no UTF"]),
        ("those that are no\n    # totals", ["are no totals"]),
        ("There is no room, and there are no members; it is no longer there.", []),
        ("ca_file means something with a port only", ["means something with"]),
        ("'user a' stands in line 3 already", ["stands in line"]),
    ],
)
def test_each_phrase_of_the_server_is_found(text: str, words: list[str]) -> None:
    """A phrase is found also across lines; what says that something is lacking passes."""
    assert [hit for _, hit in found(text, phrases=SERVER_PHRASES)] == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The client stops to\n    # acknowledge.", "stops to acknowledge"),
        ("Stop to watch.", "Stop to watch"),
        ("A MQTT broker", "A MQTT"),
        ("#: Who waits, asks.\n", "Who"),
        ("Log it. Whoever is refused is named.", "Whoever"),
        ("a star behind the leader", "behind the leader"),
        ("those who left so long ago", "so long ago"),
        ("inside\nof a delivery", "inside of"),
        ("the key is no valid text", "is no valid"),
        ("a packet of ours", "of ours"),
        ("Begin behind this INDEX", "behind this INDEX"),
        ("The packet waits so long, too", "waits so long"),
        ("after so many\n    # seconds", "so many seconds"),
        ("code that runs in the midst of the work", "in the midst"),
        ("the file is no JSON", "is no JSON"),
        ("bytes that are no packet", "that are no packet"),
        ("a chunk at 5 where 2 is due", "where 2 is due"),
        ("how is nobody's business", "nobody's business"),
    ],
)
def test_each_phrase_is_found(text: str, words: str) -> None:
    """Each phrase is found in plain text, in a comment, and across the end of a line."""
    assert [hit for _, hit in found(text)] == [words]


@pytest.mark.parametrize(
    "text",
    [
        "It stops the client.",
        "Who bears that, and how?",
        "an MQTT broker",
        "WHO",
        "of your own",
        "so many keys that it ends",
        "what is no longer there",
    ],
)
def test_other_words_pass(text: str) -> None:
    """A question, and words that merely resemble a phrase, are not reported."""
    assert found(text) == []


def test_each_docstring_of_a_test_is_a_sentence() -> None:
    """A test's docstring has three words or more, begins a sentence of its own, and ends with a full stop."""
    places = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {text}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test")
        for text in [" ".join((ast.get_docstring(node) or "").split())]
        if not is_sentence(text)
    ]
    assert not places, "\n".join(["docstrings that only go on where the test's name ends", *places])


@pytest.mark.parametrize(
    "text", ["", "No sooner.", "Also in batches, and under an edit.", "Nor then, whoever asks.", "It ends"]
)
def test_half_a_sentence_is_noticed(text: str) -> None:
    """A docstring that is missing, too short, begins with a conjunction, or has no full stop is not a sentence."""
    assert not is_sentence(text)


def test_a_heading_may_ask_without_a_question_mark() -> None:
    """A heading may begin with "Who" in a page; the same text in a source is a comment, and is reported."""
    assert found("## Who may connect\n", is_page=True) == []
    assert found("# Who may connect\n") == [(1, "Who")]
