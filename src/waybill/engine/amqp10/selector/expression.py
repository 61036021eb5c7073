"""The expression tree of a selector. A node evaluates to a value, or to true, false or unknown.

Unknown is None, and so is a property that is absent or null. Values are str, bool, int, float and bytes. Values that
cannot be compared are not equal, and neither less nor greater (JMS 2.0, 3.8.1.2).
"""

import math
from typing import Final

from mypy_extensions import i64, mypyc_attr

from waybill.engine.amqp10.selector.like import LikePattern
from waybill.engine.amqp10.view import MessageView

LIKE_MAX: Final = 16_384


@mypyc_attr(allow_interpreted_subclasses=True)
class Expression:
    """A node."""

    def evaluate(self, view: MessageView) -> object:
        raise NotImplementedError


class Literal(Expression):
    """A constant."""

    def __init__(self, value: object) -> None:
        self.value = value

    def evaluate(self, view: MessageView) -> object:
        return self.value


class Identifier(Expression):
    """A field or property of the message; `section` is one of the view's."""

    def __init__(self, section: str, name: str) -> None:
        self.section = section
        self.name = name

    def evaluate(self, view: MessageView) -> object:
        return view.value(self.section, self.name)


class And(Expression):
    """False if an operand is false, true if all are true."""

    def __init__(self, operands: list[Expression]) -> None:
        self.operands = operands

    def evaluate(self, view: MessageView) -> object:
        is_known = True
        for operand in self.operands:
            value = truth(operand.evaluate(view))
            if value is None:
                is_known = False
            elif not value:
                return False
        return True if is_known else None


class Or(Expression):
    """True if an operand is true, false if all are false."""

    def __init__(self, operands: list[Expression]) -> None:
        self.operands = operands

    def evaluate(self, view: MessageView) -> object:
        is_known = True
        for operand in self.operands:
            value = truth(operand.evaluate(view))
            if value is None:
                is_known = False
            elif value:
                return True
        return False if is_known else None


class Not(Expression):
    """The opposite; unknown stays unknown."""

    def __init__(self, operand: Expression) -> None:
        self.operand = operand

    def evaluate(self, view: MessageView) -> object:
        value = truth(self.operand.evaluate(view))
        return None if value is None else not value


class Comparison(Expression):
    """One of = <> != < <= > >=."""

    def __init__(self, sign: str, left: Expression, right: Expression) -> None:
        self.sign = "<>" if sign == "!=" else sign
        self.left = left
        self.right = right

    def evaluate(self, view: MessageView) -> object:
        return compare(self.sign, self.left.evaluate(view), self.right.evaluate(view))


class Between(Expression):
    """At least `low` and at most `high`."""

    def __init__(self, operand: Expression, low: Expression, high: Expression) -> None:
        self._both: Final = And([Comparison(">=", operand, low), Comparison("<=", operand, high)])

    def evaluate(self, view: MessageView) -> object:
        return self._both.evaluate(view)


class In(Expression):
    """Equal to one of the choices."""

    def __init__(self, operand: Expression, choices: list[Expression]) -> None:
        self.operand = operand
        self.choices = choices

    def evaluate(self, view: MessageView) -> object:
        value = self.operand.evaluate(view)
        if value is None:
            return None
        is_known = True
        for choice in self.choices:
            is_equal = compare("=", value, choice.evaluate(view))
            if is_equal is None:
                is_known = False
            elif is_equal:
                return True
        return False if is_known else None


class Like(Expression):
    """A string that matches a pattern. Unknown for other values and for strings that are too long to examine.

    It is also unknown once the patterns of a selector have examined too much of one message.
    """

    def __init__(self, operand: Expression, pattern: LikePattern) -> None:
        self.operand = operand
        self.pattern = pattern

    def evaluate(self, view: MessageView) -> object:
        value = self.operand.evaluate(view)
        if not isinstance(value, str) or len(value) > LIKE_MAX:
            return None
        steps: i64 = len(value) * self.pattern.width
        return self.pattern.matches(value) if view.take_steps(steps) else None


class IsNull(Expression):
    """Absent or null. No other condition is never unknown."""

    def __init__(self, operand: Expression) -> None:
        self.operand = operand

    def evaluate(self, view: MessageView) -> object:
        return self.operand.evaluate(view) is None


class Negative(Expression):
    """The negated number."""

    def __init__(self, operand: Expression) -> None:
        self.operand = operand

    def evaluate(self, view: MessageView) -> object:
        return calculate("-", 0, self.operand.evaluate(view))


class Arithmetic(Expression):
    """Operators of one precedence, left to right. The list is flat, so a long expression is not a deep one."""

    def __init__(self, first: Expression, following: list[tuple[str, Expression]]) -> None:
        self.first = first
        self.following = following

    def evaluate(self, view: MessageView) -> object:
        value = self.first.evaluate(view)
        for sign, operand in self.following:
            if value is None:
                return None
            value = calculate(sign, value, operand.evaluate(view))
        return value


def truth(value: object) -> bool | None:
    """The value of a condition; unknown if it is not a boolean."""
    return value if isinstance(value, bool) else None


def compare(sign: str, left: object, right: object) -> bool | None:
    if left is None or right is None:
        return None
    are_alike = (is_number(left) and is_number(right)) or (not is_number(left) and type(left) is type(right))
    if not are_alike:
        return False
    if sign == "=":
        return left == right
    if sign == "<>":
        return left != right
    # Binary values and booleans have no order.
    if isinstance(left, str) and isinstance(right, str):
        order = (left > right) - (left < right)
    elif isinstance(left, (int, float)) and isinstance(right, (int, float)) and not isinstance(left, bool):
        if not (left <= right or left >= right):
            return False  # one of them is a NaN
        order = (left > right) - (left < right)
    else:
        return False
    return _fits_order(sign, order)


def _fits_order(sign: str, order: int) -> bool:
    if order == 0:
        return sign.endswith("=")
    return sign.startswith("<") == (order < 0)


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def calculate(sign: str, left: object, right: object) -> object:
    """Unknown for operands that are not numbers, for a division by zero and for an overflow."""
    if not is_number(left) or not is_number(right):
        return None
    if isinstance(left, int) and isinstance(right, int):
        return _calculate_integers(sign, left, right)
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        try:
            return _calculate_reals(sign, float(left), float(right))
        except (OverflowError, ValueError):
            return None
    return None


def _calculate_integers(sign: str, left: int, right: int) -> object:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    if right == 0:
        return None
    # As in Java, the quotient is rounded towards zero.
    quotient = abs(left) // abs(right)
    if (left < 0) != (right < 0):
        quotient = -quotient
    return quotient if sign == "/" else left - quotient * right


def _calculate_reals(sign: str, left: float, right: float) -> object:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    if right == 0.0:
        return None
    return left / right if sign == "/" else math.fmod(left, right)
