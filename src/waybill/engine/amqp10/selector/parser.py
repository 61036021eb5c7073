"""Parses selectors: the SQL conditions of JMS, and the filter expressions of AMQP that extend them.

    condition   = conjunction *("OR" conjunction)
    conjunction = negation *("AND" negation)
    negation    = "NOT" negation | predicate
    predicate   = sum *(comparison sum) | sum ["NOT"] "BETWEEN" sum "AND" sum | sum ["NOT"] "IN" "(" sum *("," sum) ")"
                | sum ["NOT"] "LIKE" string ["ESCAPE" string] | sum "IS" ["NOT"] "NULL"
    sum         = product *(("+" | "-") product)
    product     = factor *(("*" | "/" | "%") factor)
    factor      = ("+" | "-") factor | literal | identifier | "(" condition ")"

Depth and length are limited, and nothing backtracks: the sizes of selector and message bound the work.
"""

from typing import Final

from waybill.engine.amqp10.selector.expression import (
    And,
    Arithmetic,
    Between,
    Comparison,
    Expression,
    Identifier,
    In,
    IsNull,
    Like,
    Literal,
    Negative,
    Not,
    Or,
)
from waybill.engine.amqp10.selector.like import LikePattern
from waybill.engine.amqp10.selector.names import jms_identifier, sql_identifier
from waybill.engine.amqp10.selector.tokens import (
    END,
    IDENTIFIER,
    KEYWORD,
    NUMBER,
    OPERATOR,
    STRING,
    SelectorError,
    Token,
    tokenize,
)

LENGTH_MAX: Final = 4096
DEPTH_MAX: Final = 50

_COMPARISONS: Final = frozenset({"=", "<>", "!=", "<", "<=", ">", ">="})


def parse_selector(text: str) -> Expression:
    """Parse a selector of JMS. Raises SelectorError."""
    return _parse(text, is_sql=False)


def parse_sql(text: str) -> Expression:
    """Parse an SQL filter expression, with identifiers such as `properties.subject`. Raises SelectorError."""
    return _parse(text, is_sql=True)


def _parse(text: str, *, is_sql: bool) -> Expression:
    if len(text) > LENGTH_MAX:
        raise SelectorError(f"longer than {LENGTH_MAX} characters")
    parser = _Parser(tokenize(text, double_quotes_string=is_sql), is_sql=is_sql)
    expression = parser.condition()
    if parser.next.kind != END:
        raise parser.unexpected()
    return expression


class _Parser:
    def __init__(self, tokens: list[Token], *, is_sql: bool) -> None:
        self.tokens = tokens
        self.is_sql = is_sql
        self.index = 0
        self.depth = 0
        self.next = tokens[0]

    def advance(self) -> Token:
        token = self.next
        if token.kind != END:
            self.index += 1
            self.next = self.tokens[self.index]
        return token

    def accepts(self, kind: str, text: str) -> bool:
        """Consume the next token if it is this one."""
        if self.next.kind == kind and self.next.text == text:
            self.advance()
            return True
        return False

    def expect(self, kind: str, text: str) -> None:
        if not self.accepts(kind, text):
            raise self.unexpected(text)

    def unexpected(self, wanted: str = "") -> SelectorError:
        reason = f", where {wanted} is needed" if wanted else ""
        return SelectorError(f"{self.next.text!r} at {self.next.position} does not belong there{reason}")

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise SelectorError(f"nested deeper than {DEPTH_MAX}")

    def condition(self) -> Expression:
        operands = [self.conjunction()]
        while self.accepts(KEYWORD, "OR"):
            operands.append(self.conjunction())
        return operands[0] if len(operands) == 1 else Or(operands)

    def conjunction(self) -> Expression:
        operands = [self.negation()]
        while self.accepts(KEYWORD, "AND"):
            operands.append(self.negation())
        return operands[0] if len(operands) == 1 else And(operands)

    def negation(self) -> Expression:
        if not self.accepts(KEYWORD, "NOT"):
            return self.predicate()
        self.deeper()
        operand = Not(self.negation())
        self.depth -= 1
        return operand

    def predicate(self) -> Expression:
        operand = self.sum()
        if self.accepts(KEYWORD, "IS"):
            is_negated = self.accepts(KEYWORD, "NOT")
            self.expect(KEYWORD, "NULL")
            return Not(IsNull(operand)) if is_negated else IsNull(operand)
        is_negated = self.accepts(KEYWORD, "NOT")
        tested = self.membership(operand)
        if tested is not None:
            return Not(tested) if is_negated else tested
        if is_negated:
            raise self.unexpected("BETWEEN, IN or LIKE")
        comparisons = 0
        while self.next.kind == OPERATOR and self.next.text in _COMPARISONS:
            comparisons += 1
            if comparisons > DEPTH_MAX:
                raise SelectorError(f"more than {DEPTH_MAX} comparisons in a row")
            operand = Comparison(self.advance().text, operand, self.sum())
        return operand

    def membership(self, operand: Expression) -> Expression | None:
        if self.accepts(KEYWORD, "BETWEEN"):
            low = self.sum()
            self.expect(KEYWORD, "AND")
            return Between(operand, low, self.sum())
        if self.accepts(KEYWORD, "IN"):
            self.expect(OPERATOR, "(")
            choices = [self.sum()]
            while self.accepts(OPERATOR, ","):
                choices.append(self.sum())
            self.expect(OPERATOR, ")")
            return In(operand, choices)
        if self.accepts(KEYWORD, "LIKE"):
            pattern = self.string()
            escape = self.string() if self.accepts(KEYWORD, "ESCAPE") else None
            if escape is not None and len(escape) != 1:
                raise SelectorError("an escape is one character")
            return Like(operand, LikePattern(pattern, escape))
        return None

    def string(self) -> str:
        if self.next.kind != STRING:
            raise self.unexpected("a string")
        return self.advance().text

    def sum(self) -> Expression:
        first = self.product()
        following: list[tuple[str, Expression]] = []
        while self.next.kind == OPERATOR and (self.next.text == "+" or self.next.text == "-"):  # noqa: PLR1714
            sign = self.advance().text
            following.append((sign, self.product()))
        return Arithmetic(first, following) if following else first

    def product(self) -> Expression:
        first = self.factor()
        following: list[tuple[str, Expression]] = []
        while self.next.kind == OPERATOR and self.next.text in {"*", "/", "%"}:
            sign = self.advance().text
            following.append((sign, self.factor()))
        return Arithmetic(first, following) if following else first

    def factor(self) -> Expression:
        self.deeper()
        try:
            return self.inner_factor()
        finally:
            self.depth -= 1

    def inner_factor(self) -> Expression:
        if self.accepts(OPERATOR, "-"):
            return Negative(self.factor())
        if self.accepts(OPERATOR, "+"):
            return Arithmetic(Literal(0), [("+", self.factor())])
        if self.accepts(OPERATOR, "("):
            condition = self.condition()
            self.expect(OPERATOR, ")")
            return condition
        token = self.next
        if token.kind in {STRING, NUMBER}:
            return Literal(self.advance().value)
        if token.kind == IDENTIFIER:
            self.advance()
            if self.next.kind == OPERATOR and self.next.text == "(":
                raise SelectorError(f"there is no function {token.text}")
            section, name = sql_identifier(token.text) if self.is_sql else jms_identifier(token.text)
            return Identifier(section, name)
        if token.kind == KEYWORD and token.text in {"TRUE", "FALSE", "NULL"}:
            self.advance()
            return Literal(None if token.text == "NULL" else token.text == "TRUE")
        raise self.unexpected("a value")
