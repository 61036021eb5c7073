"""The tokens of a selector: identifiers, literals, operators and punctuation."""

from typing import Final

IDENTIFIER: Final = "identifier"
KEYWORD: Final = "keyword"
STRING: Final = "string"
NUMBER: Final = "number"
OPERATOR: Final = "operator"
END: Final = "end"

KEYWORDS: Final = frozenset({"AND", "OR", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"})

_TWO_CHARACTERS: Final = frozenset({"<>", "<=", ">=", "!="})
_ONE_CHARACTER: Final = frozenset("=<>+-*/%(),")
_DIGITS: Final = "0123456789"
_HEXADECIMAL: Final = frozenset("0123456789abcdefABCDEF")
_NUMBER_DIGITS_MAX: Final = 400


class SelectorError(ValueError):
    """An invalid selector; `str()` says where and why."""


class Token:
    """One token. `value`: of a literal. `text`: as written, a keyword in upper case."""

    def __init__(self, kind: str, text: str, value: object, position: int) -> None:
        self.kind = kind
        self.text = text
        self.value = value
        self.position = position


def tokenize(text: str, *, double_quotes_string: bool) -> list[Token]:
    """Split `text` into tokens, the last one END. Raises SelectorError.

    Double quotes enclose a string if `double_quotes_string`, else an identifier; square brackets always one.
    """
    tokens: list[Token] = []
    position = 0
    size = len(text)
    while position < size:
        character = text[position]
        if character.isspace():
            position += 1
            continue
        start = position
        if character == "'" or character == '"' or character == "[":  # noqa: PLR1714 - native code compares faster
            value, position = _quoted(text, position, "]" if character == "[" else character)
            is_string = character == "'" or (character == '"' and double_quotes_string)
            tokens.append(Token(STRING if is_string else IDENTIFIER, value, value, start))
        elif character in _DIGITS or (character == "." and text[position + 1 : position + 2] in _DIGITS_OR_NONE):
            number, position = _number(text, position)
            tokens.append(Token(NUMBER, text[start:position], number, start))
        elif character.isalpha() or character in "_$":
            position = _identifier_end(text, position)
            word = text[start:position]
            if word.upper() in KEYWORDS:
                tokens.append(Token(KEYWORD, word.upper(), None, start))
            else:
                tokens.append(Token(IDENTIFIER, word, word, start))
        elif text[position : position + 2] in _TWO_CHARACTERS:
            position += 2
            tokens.append(Token(OPERATOR, text[start:position], None, start))
        elif character in _ONE_CHARACTER:
            position += 1
            tokens.append(Token(OPERATOR, character, None, start))
        else:
            raise SelectorError(f"{character!r} at {start} is not part of any token")
    tokens.append(Token(END, "the end", None, size))
    return tokens


_DIGITS_OR_NONE: Final = frozenset(_DIGITS)


def _quoted(text: str, start: int, quote: str) -> tuple[str, int]:
    """The text in quotes, in which a doubled quote is one, and the position after it."""
    parts: list[str] = []
    position = start + 1
    while True:
        end = text.find(quote, position)
        if end < 0:
            raise SelectorError(f"the quote at {start} is not closed")
        parts.append(text[position:end])
        if text[end + 1 : end + 2] != quote:
            return "".join(parts), end + 1
        parts.append(quote)
        position = end + 2


def _identifier_end(text: str, position: int) -> int:
    size = len(text)
    while position < size and (text[position].isalnum() or text[position] in "_$."):
        position += 1
    return position


def _digits_end(text: str, position: int) -> int:
    size = len(text)
    while position < size and text[position] in _DIGITS:
        position += 1
    return position


def _number(text: str, start: int) -> tuple[object, int]:
    """A number in the syntax of Java: hexadecimal, octal or decimal integers, and floating point."""
    if text[start : start + 2] in {"0x", "0X"}:
        end = start + 2
        while end < len(text) and text[end] in _HEXADECIMAL:
            end += 1
        if end == start + 2 or end - start > _NUMBER_DIGITS_MAX:
            raise _not_a_number(text, start)
        return int(text[start + 2 : end], 16), _after_suffix(text, start, end, "lL")
    end = _digits_end(text, start)
    is_real = False
    if text[end : end + 1] == ".":
        is_real = True
        end = _digits_end(text, end + 1)
    if text[end : end + 1] in {"e", "E"}:
        exponent = end + 1
        if text[exponent : exponent + 1] in {"+", "-"}:
            exponent += 1
        is_real = True
        end = _digits_end(text, exponent)
        if end == exponent:
            raise _not_a_number(text, start)
    if end - start > _NUMBER_DIGITS_MAX:
        raise _not_a_number(text, start)
    digits = text[start:end]
    if is_real or text[end : end + 1] in {"f", "F", "d", "D"}:
        return float(digits), _after_suffix(text, start, end, "fFdD")
    if len(digits) > 1 and digits[0] == "0":
        if not set(digits) <= set("01234567"):
            raise _not_a_number(text, start)
        return int(digits, 8), _after_suffix(text, start, end, "lL")
    return int(digits), _after_suffix(text, start, end, "lL")


def _after_suffix(text: str, start: int, end: int, suffixes: str) -> int:
    following = text[end : end + 1]
    if following and following in suffixes:
        end += 1
        following = text[end : end + 1]
    if following and (following.isalnum() or following in "_$."):
        raise _not_a_number(text, start)
    return end


def _not_a_number(text: str, start: int) -> SelectorError:
    return SelectorError(f"{text[start : start + 20]!r} at {start} is not a number")
