"""Typed arguments and results by the annotations of handlers: JSON on the wire, objects on both ends.

forms       JSON of any type, and back: what msgspec knows, paths, pydantic models, custom types
instances   whether an object is of an annotated type
arguments   the arguments of a handler, by position and by name
"""
