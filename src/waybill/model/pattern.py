r"""Regular expressions over names, matched in linear time.

Patterns come from administrators, names from peers. With a backtracking matcher, a peer could choose a name that never
finishes. So a pattern is compiled to a small program, whose threads all advance through the name together (Pike's VM):
the work is at most the length of the name times the size of the program.

    alternation:  concatenation | concatenation ...
    concatenation:  piece piece ...
    piece:  atom, perhaps with  * + ? {n} {n,} {n,m}  and a `?` after it
    atom:  character  .  [set]  (group)  (?:group)  ^  $  \b \B \A \z \Z  \d \w \s \D \W \S  \t \n \r \f \v \xhh

`(?i)` may stand at the start. A look-ahead, `(?=...)` or `(?!...)`, may stand behind a `^` that begins the pattern.
Syntax that needs backtracking (back references, other look-arounds, atomic groups) is refused, and so is syntax whose
meaning differs between dialects. `$` matches at the very end only, and classes are of ASCII characters.
"""

from typing import Final

from mypy_extensions import i64

from waybill.model.errors import InvalidArgument

PROGRAM_LIMIT: Final = 1000
PATTERN_LIMIT: Final = 1000
DEPTH_LIMIT: Final = 50
CACHE_LIMIT: Final = 1024
LAST_CODE: Final = 0x10FFFF

TAKE: Final = 0
SPLIT: Final = 1
JUMP: Final = 2
START: Final = 3
END: Final = 4
BOUNDARY: Final = 5
NO_BOUNDARY: Final = 6
MATCH: Final = 7

Ranges = list[tuple[int, int]]

_DIGITS: Final[Ranges] = [(48, 57)]
_WORD: Final[Ranges] = [(48, 57), (65, 90), (95, 95), (97, 122)]
_SPACE: Final[Ranges] = [(9, 13), (32, 32)]
_CLASSES: Final[dict[str, Ranges]] = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_ASSERTIONS: Final = {"b": BOUNDARY, "B": NO_BOUNDARY, "A": START, "z": END, "Z": END}
_LOOK_AHEADS: Final = ("^(?=", "^(?!")


def _inverted(ranges: Ranges) -> Ranges:
    inverse: Ranges = []
    following = 0
    for first, last in sorted(ranges):
        if first > following:
            inverse.append((following, first - 1))
        following = max(following, last + 1)
    if following <= LAST_CODE:
        inverse.append((following, LAST_CODE))
    return inverse


def _without_case(ranges: Ranges) -> Ranges:
    """The ranges and, for ASCII letters, their other case."""
    both = list(ranges)
    for first, last in ranges:
        for start, shift in ((65, 32), (97, -32)):
            low, high = max(first, start), min(last, start + 25)
            if low <= high:
                both.append((low + shift, high + shift))
    return both


class _Instruction:
    """TAKE continues at the next one if the character is in `ranges`; SPLIT and JUMP continue at `x` (and `y`)."""

    def __init__(self, code: i64, x: i64 = 0, y: i64 = 0) -> None:
        self.code: i64 = code
        self.x: i64 = x
        self.y: i64 = y
        self.ranges: Ranges = []

    def takes(self, character: i64) -> bool:
        for first, last in self.ranges:  # noqa: SIM110 - a generator would cost more than the loop
            if first <= character <= last:
                return True
        return False


class _Tree:
    """A part of a pattern: a single instruction, a sequence of pieces, a choice of them, or a repetition of one."""

    def __init__(self, kind: str, parts: list["_Tree"]) -> None:
        self.kind = kind
        self.parts = parts
        self.code = MATCH
        self.ranges: Ranges = []
        self.least = 0
        self.most = -1


def _leaf(code: int, ranges: Ranges) -> _Tree:
    leaf = _Tree("leaf", [])
    leaf.code = code
    leaf.ranges = ranges
    return leaf


class _Parser:
    """Recursive descent over the text of a pattern. Raises `InvalidArgument`."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.ignores_case = text.startswith("(?i)")
        if self.ignores_case:
            self.at = 4

    def refuse(self, why: str) -> InvalidArgument:
        return InvalidArgument(f"'{self.text}' is not a supported pattern: {why}")

    def parse(self) -> _Tree:
        tree = self.alternation()
        if self.at < len(self.text):
            raise self.refuse("a ')' without '('")
        return tree

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        character = self.peek()
        if not character:
            raise self.refuse("it ends unexpectedly")
        self.at += 1
        return character

    def alternation(self) -> _Tree:
        choices = [self.concatenation()]
        while self.peek() == "|":
            self.at += 1
            choices.append(self.concatenation())
        return choices[0] if len(choices) == 1 else _Tree("choice", choices)

    def concatenation(self) -> _Tree:
        parts: list[_Tree] = []
        while self.peek() not in {"", "|", ")"}:
            parts.append(self.repetition(self.atom()))
        return _Tree("sequence", parts)

    def repetition(self, atom: _Tree) -> _Tree:
        bounds = self.bounds()
        if bounds is None:
            return atom
        if atom.kind == "leaf" and atom.code != TAKE:
            raise self.refuse("there is nothing to repeat")
        if self.peek() == "?":
            self.at += 1
        if self.peek() == "+" or self.bounds() is not None:
            raise self.refuse("a repetition is repeated, or possessive")
        repeated = _Tree("repeat", [atom])
        repeated.least, repeated.most = bounds
        return repeated

    def bounds(self) -> tuple[int, int] | None:
        """Parse a quantifier, if there is one. Returns the minimum and maximum of repetitions, -1 for any number."""
        character = self.peek()
        simple = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}.get(character)
        if simple is not None:
            self.at += 1
            return simple
        if character != "{":
            return None
        inner, closing, _ = self.text[self.at + 1 :].partition("}")
        low, comma, high = inner.partition(",")
        if not closing or not low.isdecimal() or (high and not high.isdecimal()) or len(inner) > 9:
            raise self.refuse("'{' begins a repetition like {2,5}; write \\{ for the character")
        self.at += len(inner) + 2
        least = int(low)
        most = (int(high) if high else -1) if comma else least
        if max(least, most) > PROGRAM_LIMIT or 0 <= most < least:
            raise self.refuse(f"{{{inner}}} repeats too often, or its bounds are reversed")
        return least, most

    def atom(self) -> _Tree:
        character = self.take()
        if character == "(":
            return self.group()
        if character == "[":
            return self.taking(self.character_set())
        if character == ".":
            return self.taking(_inverted([(10, 10)]))
        if character == "^":
            return _leaf(START, [])
        if character == "$":
            return _leaf(END, [])
        if character in "*+?{":
            raise self.refuse("there is nothing to repeat")
        if character == "\\":
            assertion = _ASSERTIONS.get(self.peek())
            if assertion is not None:
                self.at += 1
                return _leaf(assertion, [])
            return self.taking(self.escape())
        return self.taking([(ord(character), ord(character))])

    def taking(self, ranges: Ranges) -> _Tree:
        return _leaf(TAKE, ranges)

    def group(self) -> _Tree:
        self.depth += 1
        if self.depth > DEPTH_LIMIT:
            raise self.refuse("it is nested too deeply")
        if self.peek() == "?":
            if self.text[self.at : self.at + 2] != "?:":
                raise self.refuse("of the groups that begin with '(?', only (?: is supported, and a first ^(?= or ^(?!")
            self.at += 2
        elif self.peek() == "*":
            raise self.refuse("it contains a verb such as (*FAIL)")
        tree = self.alternation()
        if self.take() != ")":
            raise self.refuse("a '(' is not closed")
        self.depth -= 1
        return tree

    def escape(self) -> Ranges:
        character = self.take()
        known = _CLASSES.get(character.lower())
        if known is not None:
            return known if character.islower() else _inverted(known)
        character = _CONTROLS.get(character, character)
        if character == "x":
            digits = self.text[self.at : self.at + 2]
            if len(digits) != 2 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise self.refuse("\\x needs two hexadecimal digits")
            self.at += 2
            return [(int(digits, 16), int(digits, 16))]
        if character.isalnum():
            raise self.refuse(f"\\{character} is not supported")
        return [(ord(character), ord(character))]

    def character_set(self) -> Ranges:
        is_inverted = self.peek() == "^"
        if is_inverted:
            self.at += 1
        ranges: Ranges = []
        is_first = True
        while self.peek() != "]" or is_first:
            is_first = False
            if self.text[self.at : self.at + 2] in {"[:", "[.", "[="}:
                raise self.refuse("named classes are not supported; write \\w or a-z")
            low = self.set_member()
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in {"", "]"}:
                self.at += 1
                high = self.set_member()
                if len(low) != 1 or len(high) != 1 or low[0][0] != low[0][1] or low[0][0] > high[0][0]:
                    raise self.refuse("a set has a range that is reversed or has no end")
                ranges.append((low[0][0], high[0][1]))
            else:
                ranges += low
        self.at += 1
        if self.ignores_case:
            ranges = _without_case(ranges)
        return _inverted(ranges) if is_inverted else ranges

    def set_member(self) -> Ranges:
        character = self.take()
        return self.escape() if character == "\\" else [(ord(character), ord(character))]


class _Program:
    """A pattern as instructions; the threads of a match are indexes into them."""

    def __init__(self, parser: _Parser, tree: _Tree) -> None:
        self._parser = parser
        self._instructions: list[_Instruction] = []
        self._compile(tree)
        self._emit(MATCH)

    def _emit(self, code: i64, x: i64 = 0, y: i64 = 0) -> _Instruction:
        if len(self._instructions) >= PROGRAM_LIMIT:
            raise self._parser.refuse("it is too large")
        instruction = _Instruction(code, x, y)
        self._instructions.append(instruction)
        return instruction

    def _compile(self, tree: _Tree) -> None:
        if tree.kind == "leaf":
            ranges = tree.ranges
            self._emit(tree.code).ranges = _without_case(ranges) if self._parser.ignores_case else ranges
        elif tree.kind == "sequence":
            for part in tree.parts:
                self._compile(part)
        elif tree.kind == "choice":
            self._compile_choice(tree.parts)
        else:
            self._compile_repetition(tree)

    def _compile_choice(self, choices: list[_Tree]) -> None:
        jumps: list[_Instruction] = []
        for choice in choices[:-1]:
            split = self._emit(SPLIT)
            split.x = len(self._instructions)
            self._compile(choice)
            jumps.append(self._emit(JUMP))
            split.y = len(self._instructions)
        self._compile(choices[-1])
        for jump in jumps:
            jump.x = len(self._instructions)

    def _compile_repetition(self, tree: _Tree) -> None:
        part = tree.parts[0]
        for _ in range(tree.least):
            self._compile(part)
        if tree.most < 0:
            split = self._emit(SPLIT)
            again = len(self._instructions) - 1
            split.x = len(self._instructions)
            self._compile(part)
            self._emit(JUMP, again)
            split.y = len(self._instructions)
            return
        splits: list[_Instruction] = []
        for _ in range(tree.most - tree.least):
            split = self._emit(SPLIT)
            split.x = len(self._instructions)
            splits.append(split)
            self._compile(part)
        for split in splits:
            split.y = len(self._instructions)

    def search(self, text: str, *, everywhere: bool) -> bool:
        """Whether it matches at the start of `text` or, with `everywhere`, at any place of it."""
        threads: list[i64] = []
        for at in range(len(text) + 1):
            if (everywhere or at == 0) and self._add(0, text, at, threads):
                return True
            if at == len(text) or (not threads and not everywhere):
                return False
            character: i64 = ord(text[at])
            seeds = [index + 1 for index in threads if self._instructions[index].takes(character)]
            threads = []
            seen: set[i64] = set()
            for seed in seeds:
                if self._follow(seed, text, at + 1, threads, seen):
                    return True
        return False

    def _add(self, start: i64, text: str, at: int, threads: list[i64]) -> bool:
        return self._follow(start, text, at, threads, set(threads))

    def _follow(self, start: i64, text: str, at: int, threads: list[i64], seen: set[i64]) -> bool:
        """Add to `threads` all TAKE instructions that `start` reaches without input. True if it reaches MATCH."""
        pending: list[i64] = [start]
        while pending:
            index = pending.pop()
            if index in seen:
                continue
            seen.add(index)
            instruction = self._instructions[index]
            code = instruction.code
            if code == MATCH:
                return True
            if code == TAKE:
                threads.append(index)
            elif code == JUMP:
                pending.append(instruction.x)
            elif code == SPLIT:
                pending.append(instruction.y)
                pending.append(instruction.x)
            elif _holds(code, text, at):
                pending.append(index + 1)
        return False


def _holds(code: i64, text: str, at: int) -> bool:
    if code == START:
        return at == 0
    if code == END:
        return at == len(text)
    is_boundary = _is_word(text[at - 1 : at]) != _is_word(text[at : at + 1])
    return is_boundary == (code == BOUNDARY)


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


class Pattern:
    """Raises `InvalidArgument` if the text is not a valid pattern."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._cache: dict[str, bool] = {}
        if len(text) > PATTERN_LIMIT:
            raise InvalidArgument(f"a pattern of {len(text)} characters is longer than {PATTERN_LIMIT}")
        parser = _Parser(text)
        self._is_negative = text.startswith("^(?!")
        ahead = self._look_ahead(parser) if text.startswith(_LOOK_AHEADS) else None
        self._ahead = ahead
        tree = parser.parse()
        if ahead is not None and tree.kind == "choice":
            raise parser.refuse("it has a '|' behind a look-ahead; put that into a group")
        self._program = _Program(parser, tree)

    def _look_ahead(self, parser: _Parser) -> _Program:
        """Remove `^(?=...)` from the text: it is matched once, at the start, and costs no more than another pattern."""
        parser.at = 4
        parser.alternation()
        if parser.take() != ")" or parser.peek() in {"*", "+", "?", "{"}:
            raise parser.refuse("its look-ahead is not closed, or repeated")
        end = parser.at
        ahead = _Parser(parser.text[4 : end - 1])
        parser.text = "^" + parser.text[end:]
        parser.at = 0
        return _Program(ahead, ahead.parse())

    def matches(self, text: str) -> bool:
        """Whether the pattern is found anywhere in `text`."""
        found = self._cache.get(text)
        if found is None:
            found = self._search(text)
            if len(self._cache) >= CACHE_LIMIT:
                self._cache.clear()
            self._cache[text] = found
        return found

    def _search(self, text: str) -> bool:
        ahead = self._ahead
        if ahead is not None and ahead.search(text, everywhere=False) == self._is_negative:
            return False
        return self._program.search(text, everywhere=True)
