"""The global parameters of a node and the descriptions of virtual hosts."""

import json
from typing import Final

from waybill.model.errors import InvalidArgument, NotFound
from waybill.model.store import Store

GLOBAL_PARAMETER: Final = "global_parameter"
DESCRIPTION: Final = "virtual_host_description"
NAME_LIMIT: Final = 255
VALUE_LIMIT: Final = 64 << 10


class Description:
    """The description of a virtual host. `default_queue_type` is the type of queues that are declared without one."""

    def __init__(self, text: str = "", tags: tuple[str, ...] = (), default_queue_type: str = "") -> None:
        self.text = text
        self.tags = tags
        self.default_queue_type = default_queue_type


class Parameters:
    """The parameters and descriptions, in memory and in the store. Values are stored as JSON text."""

    def __init__(self, store: Store) -> None:
        self.values: dict[str, object] = {}
        self.descriptions: dict[str, Description] = {}
        self._store = store

    def recover(self) -> None:
        """Load the stored parameters."""
        for name, value in self._store.definitions(GLOBAL_PARAMETER):
            self.values[name] = json.loads(str(value["json"]))
        for name, value in self._store.definitions(DESCRIPTION):
            tags = value.get("tags")
            self.descriptions[name] = Description(
                str(value.get("text", "")),
                tuple(str(tag) for tag in tags) if isinstance(tags, (list, tuple)) else (),
                str(value.get("default_queue_type", "")),
            )

    def put(self, name: str, value: object) -> None:
        """Set a parameter to a JSON value. Raises `InvalidArgument`."""
        if not name or len(name) > NAME_LIMIT:
            raise InvalidArgument(f"a parameter's name has 1 to {NAME_LIMIT} characters")
        text = json.dumps(value)
        if len(text) > VALUE_LIMIT:
            raise InvalidArgument(f"the value of parameter '{name}' has more than {VALUE_LIMIT} characters")
        self.values[name] = value
        self._store.define(GLOBAL_PARAMETER, name, {"json": text})

    def clear(self, name: str) -> None:
        """Raises `NotFound`."""
        if name not in self.values:
            raise NotFound(f"no parameter '{name}'")
        del self.values[name]
        self._store.undefine(GLOBAL_PARAMETER, name)

    def describe(self, virtual_host: str, description: Description) -> None:
        self.descriptions[virtual_host] = description
        self._store.define(
            DESCRIPTION,
            virtual_host,
            {
                "text": description.text,
                "tags": list(description.tags),
                "default_queue_type": description.default_queue_type,
            },
        )

    def forget_virtual_host(self, name: str) -> None:
        if self.descriptions.pop(name, None) is not None:
            self._store.undefine(DESCRIPTION, name)
