"""The arguments of a handler: objects on both ends, an array of JSON on the wire (ojs-core section 5.1).

The specification knows positions only. A parameter that may be given by position travels at its position, however the
caller gave it. Parameters that can only be given by name travel as one JSON object after all the positions:

    async def send(to: str, subject: str = "", *, copies: list[str] = []) -> None: ...

    send.push("a@example.com")                          ["a@example.com"]
    send.push("a@example.com", subject="Hi")            ["a@example.com", "Hi"]
    send.push("a@example.com", copies=["b@..."])        ["a@example.com", "", {"copies": ["b@..."]}]

A program in any language can write that. One that names all its arguments, `[{"to": "a@example.com"}]`, is understood
too, where the object could not be the first argument.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Optional, get_type_hints

import msgspec

from waybill.ojs.codec.forms import CustomTypes, Form
from waybill.ojs.errors import InvalidArguments, InvalidJob
from waybill.ojs.resources import Wanted

POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_PATH = re.compile(r"^(.*) - at `\$(.*)`$", re.DOTALL)

_log = logging.getLogger("waybill.ojs.codec")


class ResultForm:
    """The JSON form of a handler's result; without an annotation, any JSON."""

    def __init__(self, hint: Any, custom: CustomTypes) -> None:  # noqa: ANN401 - an annotation
        """Raises TypeError for a type without a JSON form."""
        self._form = Form(hint, custom)

    def encode(self, result: object) -> bytes:
        """Return a result as JSON. Raises ValueError, TypeError, and errors of a custom codec."""
        return msgspec.json.encode(result, enc_hook=self._form.encode_hook)

    def decode(self, encoded: bytes | msgspec.Raw) -> object:
        """Return the result from its JSON. Raises ValueError for JSON of another type."""
        return self._form.decode(msgspec.json.decode(encoded))


class Arguments:
    """The arguments of one handler."""

    def __init__(
        self, job_type: str, function: Callable[..., object], hints: Mapping[str, Any], custom: CustomTypes
    ) -> None:
        """`hints` are its annotations (`hints_of`). Raises TypeError for a parameter without a JSON form."""
        self._job_type = job_type
        self._signature = inspect.signature(function)
        parameters = [one for one in self._signature.parameters.values() if not isinstance(one.default, Wanted)]
        self._forms = {one.name: _form_of(job_type, one, hints, custom) for one in parameters}
        self._positional = [one for one in parameters if one.kind in POSITIONAL]
        by_name = [one for one in parameters if one.kind is one.KEYWORD_ONLY]
        self._named = {one.name for one in by_name}
        self._required = {one.name for one in by_name if one.default is one.empty}
        self._rest = next((one.name for one in parameters if one.kind is one.VAR_POSITIONAL), None)
        self._other = next((one.name for one in parameters if one.kind is one.VAR_KEYWORD), None)
        self._takes_names = self._rest is None and (bool(self._named) or self._other is not None)
        self._most = len(self._positional)
        self._fewest = sum(one.default is one.empty for one in self._positional)
        forms = [self._forms[one.name] for one in self._positional]
        self._plain = [] if self._required else _plain_forms(forms, self._fewest)
        self._is_plain: Callable[[Sequence[object]], bool] = _compiled("{plain}", self._plain)
        """Checks quickly whether arguments are valid JSON values as they are, which is so for most jobs."""
        self.is_checked = self._takes_names or any(form.hint is not Any for form in self._forms.values())
        """Whether the annotations restrict the arguments beyond their number."""

    def encode(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
        """Return the array of a call. Raises TypeError if it does not fit the function, InvalidJob for a wrong type."""
        if not kwargs:
            if self._is_plain(args):
                return list(args)
            if (
                not self.is_checked
                and self._fewest <= len(args)
                and (len(args) <= self._most or self._rest is not None)
            ):
                return list(args)
        bound = self._signature.bind(*args, **kwargs)
        given = dict(bound.arguments)
        others: Mapping[str, object] = given.pop(self._other, {}) if self._other is not None else {}
        rest: Sequence[object] = given.pop(self._rest, ()) if self._rest is not None else ()
        names = {name: given.pop(name) for name in list(given) if name not in {one.name for one in self._positional}}
        names |= others
        if (names and not self._takes_names) or (names.keys() - self._named and self._other is None):
            raise TypeError(f"{self._job_type}: {next(iter(names))} cannot be passed to a job")
        encoded = self._positions(given, all_of_them=bool(names or rest))
        encoded += [self._encoded(str(self._rest), value) for value in rest]
        if names:
            encoded.append({name: self._encoded(name, value) for name, value in names.items()})
        return encoded

    def encode_any(self, args: Sequence[object]) -> list[object]:
        """Return the array of arguments that are JSON values or objects. Raises InvalidJob naming the parameter."""
        encoded = list(args)
        if not self.is_checked or self._is_plain(encoded):
            return encoded
        for index, parameter in enumerate(self._positional[: len(encoded)]):
            try:
                encoded[index] = self._forms[parameter.name].written(encoded[index])
            except (ValueError, TypeError, RecursionError) as error:
                raise _refused(parameter.name, error, InvalidJob) from error
        self.check(encoded)
        return encoded

    def encode_names(self, args: Sequence[object], kwargs: Mapping[str, object]) -> list[object]:
        """Return the array of a call with JSON arguments, some by name, as other job systems have them.

        Raises TypeError if it does not fit the function, InvalidJob for a wrong type.
        """
        if not kwargs:
            return self.encode_any(args)
        bound = self._signature.bind(*args, **kwargs)
        given = {one.name: bound.arguments[one.name] for one in self._positional if one.name in bound.arguments}
        names = {name: kwargs[name] for name in kwargs if name not in given}
        last = max((i for i, one in enumerate(self._positional, 1) if one.name in given), default=0)
        positions = self._positional if names else self._positional[:last]
        encoded = [given.get(one.name, self._forms[one.name].written(one.default)) for one in positions]
        if names:
            encoded.append(names)
        self.check(encoded)
        return encoded

    def check(self, args: list[object]) -> None:
        """Check an array of JSON. Raises InvalidJob that names the parameter."""
        if not self._is_plain(args):
            self.decode(args)

    def decode(self, args: Sequence[object]) -> tuple[list[object], dict[str, object]]:
        """Return the positional and keyword arguments of the function. Raises InvalidArguments."""
        try:
            return self._by_position(args)
        except InvalidArguments:
            names = args[0] if len(args) == 1 else None
            if not isinstance(names, dict) or not names.keys() <= {one.name for one in self._positional} | self._named:
                raise
            return self._by_name(names)

    def caller(self, function: Callable[..., Any]) -> Callable[[list[object]], Any]:
        """Return a function that calls `function` with a JSON array, with or without resources.

        It raises InvalidArguments, and the errors of the function.
        """
        if not self.is_checked:
            return lambda args: function(*args)
        decode = self.decode

        def call_decoded(args: list[object]) -> Any:  # noqa: ANN401 - what the function returns
            positional, named = decode(args)
            return function(*positional, **named)

        call: Callable[[list[object]], Any]
        call = _compiled(
            "function(*a) if {plain} else decoded(a)", self._plain, function=function, decoded=call_decoded
        )
        return call

    def _positions(self, given: dict[str, object], *, all_of_them: bool) -> list[object]:
        """Encode positional arguments; defaults fill gaps."""
        last = (
            self._most
            if all_of_them
            else max((i for i, one in enumerate(self._positional, 1) if one.name in given), default=0)
        )
        return [self._encoded(one.name, given.get(one.name, one.default)) for one in self._positional[:last]]

    def _encoded(self, name: str, value: object) -> object:
        form = self._forms.get(name) or self._forms[str(self._other)]
        try:
            return form.encode(value)
        except (ValueError, TypeError, RecursionError) as error:
            raise _refused(name, error, InvalidJob) from error

    def _by_position(self, args: Sequence[object]) -> tuple[list[object], dict[str, object]]:
        count = len(args)
        most = self._most + int(self._takes_names)
        if count > most and self._rest is None:
            raise InvalidArguments(f"args[{most}]", f"is one argument too many: the handler takes {most}")
        named: dict[str, object] = {}
        if self._takes_names and count == self._most + 1:
            names, args, count = args[-1], args[:-1], count - 1
            if not isinstance(names, dict):
                raise InvalidArguments(f"args[{count}]", "must be an object with the keyword arguments")
            named = self._decoded_names(names)
        missing = [one.name for one in self._positional[count : self._fewest]] + sorted(self._required - named.keys())
        if missing:
            raise InvalidArguments(missing[0], "is missing")
        names_of = [one.name for one in self._positional] + [str(self._rest)] * (count - self._most)
        return [self._decoded(name, value) for name, value in zip(names_of, args, strict=False)], named

    def _by_name(self, names: dict[str, object]) -> tuple[list[object], dict[str, object]]:
        missing = [one.name for one in self._positional[: self._fewest] if one.name not in names]
        missing += sorted(self._required - names.keys())
        if missing:
            raise InvalidArguments(missing[0], "is missing")
        positional = []
        for one in self._positional:
            if one.kind is not one.POSITIONAL_ONLY:
                break
            positional.append(self._decoded(one.name, names[one.name]) if one.name in names else one.default)
        by_position = {one.name for one in self._positional[: len(positional)]}
        return positional, self._decoded_names({name: names[name] for name in names if name not in by_position})

    def _decoded_names(self, names: dict[str, object]) -> dict[str, object]:
        unknown = [name for name in names if name not in self._forms] if self._other is None else []
        if unknown:
            raise InvalidArguments(unknown[0], "is not a parameter of the handler")
        return {name: self._decoded(name, value) for name, value in names.items()}

    def _decoded(self, name: str, value: object) -> object:
        form = self._forms.get(name) or self._forms[str(self._other)]
        try:
            return form.decode(value)
        except (ValueError, TypeError, RecursionError) as error:
            raise _refused(name, error, InvalidArguments) from error


def hints_of(function: Callable[..., object], names: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Return the annotations of a function; `names` are the local names where it was defined.

    An annotation with names that do not exist at run time (`if TYPE_CHECKING`) is logged, and not checked.
    """
    # A base, or a partial function, has no annotations of its own.
    function = inspect.unwrap(function)
    with contextlib.suppress(Exception):  # an annotation may be any expression
        return get_type_hints(function, localns=dict(names) if names else None, include_extras=True)
    found: dict[str, Any] = {}
    for name, annotation in getattr(function, "__annotations__", {}).items():
        probe = type("Probe", (), {"__annotations__": {name: annotation}, "__module__": function.__module__})
        try:
            found |= get_type_hints(probe, localns=dict(names) if names else None, include_extras=True)
        except Exception as error:  # noqa: BLE001 - an annotation may be any expression
            where = f"{function.__module__}.{function.__qualname__}"
            _log.warning(
                "%s of %s is not checked: its annotation %r cannot be read: %s", name, where, annotation, error
            )
    return found


def local_names(depth: int) -> dict[str, object]:
    """Return the local variables of a function on the stack, for annotations of a handler that is defined in it."""
    return dict(sys._getframe(depth + 1).f_locals)  # noqa: SLF001 - there is no other way to them


def _form_of(job_type: str, parameter: inspect.Parameter, hints: Mapping[str, Any], custom: CustomTypes) -> Form:
    hint = hints.get(parameter.name, Any)
    if parameter.default is None and hint is not Any:
        hint = Optional[hint]  # noqa: UP045 - of a type that is known at run time
    try:
        return Form(hint, custom)
    except (TypeError, RecursionError) as error:
        raise TypeError(f"{job_type}: parameter {parameter.name}: {error}") from error


def _compiled(expression: str, plain: list[tuple[type, ...]], **names: object) -> Any:  # noqa: ANN401 - a function
    """Return a function of an array `a`; `{plain}` is replaced by a test of the elements' classes.

    It is generated, because every job runs it: it takes a third of the time of a loop.
    """
    kinds = {f"t{index}": kind for index, kind in enumerate(dict.fromkeys(kind for form in plain for kind in form))}
    name_of = {kind: name for name, kind in kinds.items()}
    tests = [
        " and ".join([f"len(a) == {len(form)}", *(f"type(a[{i}]) is {name_of[kind]}" for i, kind in enumerate(form))])
        for form in plain
    ]
    source = expression.format(plain=f"({' or '.join(tests) or False})")
    return eval(f"lambda a: {source}", {"len": len, "type": type, **kinds, **names})  # noqa: S307 - of ours alone


def _plain_forms(forms: list[Form], fewest: int) -> list[tuple[type, ...]]:
    if not all(form.is_plain for form in forms[:fewest]):
        return []
    count = next((i for i, form in enumerate(forms) if not form.is_plain), len(forms))
    return [tuple(form.hint for form in forms[:length]) for length in range(fewest, count + 1)]


def _refused(name: str, error: Exception, kind: type[InvalidJob]) -> InvalidJob:
    """Return an error that names the parameter and the path inside it."""
    found = _PATH.match(str(error))
    path, message = (found[2], found[1]) if found else ("", str(error))
    if message.startswith("Expected"):
        message = "e" + message[1:]
    return kind(f"{name}{path}", message, code="INVALID_ARGS")
