"""Typed arguments and results: what handlers' annotations say, as JSON on the wire and as objects on both ends.

forms       JSON of any type, and back: what msgspec knows, paths, pydantic models, custom types
instances   whether an object is of an annotated type
arguments   the arguments of a handler, by position and by name
"""
