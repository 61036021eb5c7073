"""Policies: settings that an administrator gives to all queues and exchanges whose names match a pattern.

At most one policy and one operator policy apply to an entity: the matching ones with the highest priority. The
arguments of a queue win over its policy, except that the smaller of two limits applies. An operator policy limits both
in the same way.
"""

from typing import Final

from waybill.model.cluster_settings import CLUSTER_SETTINGS, OPERATORS, check_cluster_settings
from waybill.model.errors import InvalidArgument
from waybill.model.pattern import Pattern
from waybill.model.queue_arguments import CLASSIC, FOREIGN_ARGUMENTS, QUORUM, STREAM, QueuePolicy

ALL: Final = "all"
QUEUES: Final = "queues"
EXCHANGES: Final = "exchanges"
APPLY_TO: Final[dict[str, frozenset[str]]] = {
    ALL: frozenset({EXCHANGES, CLASSIC, QUORUM, STREAM}),
    QUEUES: frozenset({CLASSIC, QUORUM, STREAM}),
    EXCHANGES: frozenset({EXCHANGES}),
    "classic_queues": frozenset({CLASSIC}),
    "quorum_queues": frozenset({QUORUM}),
    "streams": frozenset({STREAM}),
}
LIMITS: Final = frozenset({"message-ttl", "expires", "max-length", "max-length-bytes", "delivery-limit", "max-age"})
SETTINGS: Final = LIMITS | {
    *("overflow", "dead-letter-exchange", "dead-letter-routing-key", "stream-max-segment-size-bytes"),
}
ALTERNATE_EXCHANGE: Final = "alternate-exchange"


class Policy:
    """One policy of a virtual host. `definition` has names without `x-`: `{"max-length": 1000}`.

    Raises `InvalidArgument` for a bad pattern, an unknown `apply_to` or setting, or a setting's value.
    """

    def __init__(
        self,
        name: str,
        pattern: str,
        definition: dict[str, object],
        priority: int,
        apply_to: str,
        *,
        is_operator: bool,
    ) -> None:
        if apply_to not in APPLY_TO:
            raise InvalidArgument(f"policy '{name}': apply-to '{apply_to}' is not one of {', '.join(APPLY_TO)}")
        if not definition:
            raise InvalidArgument(f"policy '{name}' sets nothing")
        known = LIMITS | OPERATORS | {"overflow"} if is_operator else SETTINGS | CLUSTER_SETTINGS | {ALTERNATE_EXCHANGE}
        unknown = sorted(definition.keys() - known)
        if unknown:
            raise InvalidArgument(f"policy '{name}': {', '.join(unknown)} are not recognised policy settings")
        if not isinstance(definition.get(ALTERNATE_EXCHANGE, ""), str):
            raise InvalidArgument(f"policy '{name}': '{ALTERNATE_EXCHANGE}' must be a string")
        check_cluster_settings(definition)
        for argument, value in _as_arguments(definition).items():
            _check(argument, value)
        self.name = name
        self.pattern = Pattern(pattern)
        self.definition = definition
        self.priority = priority
        self.apply_to = apply_to
        self.is_operator = is_operator

    def applies(self, kind: str, name: str) -> bool:
        """Whether the policy applies to the entity `name`. `kind` is "exchanges" or a type of queue."""
        return kind in APPLY_TO[self.apply_to] and self.pattern.matches(name)


class Policies:
    """The policies of one virtual host."""

    def __init__(self) -> None:
        self.policies: dict[str, Policy] = {}
        self.operator_policies: dict[str, Policy] = {}

    def put(self, policy: Policy) -> None:
        """Add a policy, or replace the one of that name."""
        (self.operator_policies if policy.is_operator else self.policies)[policy.name] = policy

    def policy_of(self, kind: str, name: str) -> Policy | None:
        return _best(self.policies, kind, name)

    def operator_policy_of(self, kind: str, name: str) -> Policy | None:
        return _best(self.operator_policies, kind, name)

    def queue_settings(self, kind: str, name: str, arguments: dict[str, object]) -> QueuePolicy:
        """The effective settings of a queue of the type `kind`."""
        merged = dict(arguments)
        policy = self.policy_of(kind, name)
        if policy is not None:
            for argument, value in _as_arguments(policy.definition, kind).items():
                merged[argument] = _merged(argument, merged.get(argument, value), value)
        operator_policy = self.operator_policy_of(kind, name)
        if operator_policy is not None:
            for argument, value in _as_arguments(operator_policy.definition, kind).items():
                # The owner of the queue chooses neither the operator's limits nor what happens when they are reached.
                present = merged.get(argument, value) if argument[2:] in LIMITS else value
                merged[argument] = _merged(argument, present, value)
        if "x-dead-letter-exchange" not in merged:
            merged.pop("x-dead-letter-routing-key", None)
        return QueuePolicy(merged)

    def alternate_of(self, name: str, arguments: dict[str, object]) -> str | None:
        """The alternate exchange of an exchange."""
        own = arguments.get(ALTERNATE_EXCHANGE)
        if isinstance(own, str):
            return own
        policy = self.policy_of(EXCHANGES, name)
        given = policy.definition.get(ALTERNATE_EXCHANGE) if policy is not None else None
        return given if isinstance(given, str) else None


def _best(policies: dict[str, Policy], kind: str, name: str) -> Policy | None:
    best: Policy | None = None
    for policy in policies.values():
        if (best is None or policy.priority > best.priority) and policy.applies(kind, name):
            best = policy
    return best


def _as_arguments(definition: dict[str, object], kind: str = "") -> dict[str, object]:
    """The settings as arguments of a queue, without those that its type does not support."""
    foreign = FOREIGN_ARGUMENTS.get(kind, frozenset())
    others = CLUSTER_SETTINGS | {ALTERNATE_EXCHANGE}
    arguments = {"x-" + name: value for name, value in definition.items() if name not in others}
    return {name: value for name, value in arguments.items() if name not in foreign}


def _check(argument: str, value: object) -> None:
    """Raises `InvalidArgument` for a value that no queue can have."""
    arguments = {argument: value}
    if argument == "x-dead-letter-routing-key":
        # The queue's own arguments may name the exchange that this needs.
        arguments["x-dead-letter-exchange"] = ""
    owner = next(kind for kind, foreign in FOREIGN_ARGUMENTS.items() if argument not in foreign)
    QueuePolicy({"x-queue-type": owner, **arguments})


def _merged(argument: str, present: object, value: object) -> object:
    """The smaller of two limits; of other settings, the existing one."""
    if argument == "x-max-age":
        ages = [QueuePolicy({"x-queue-type": STREAM, argument: age}).max_age_ms for age in (present, value)]
        return present if ages[0] <= ages[1] else value
    if argument[2:] in LIMITS and isinstance(present, int) and isinstance(value, int):
        return min(present, value)
    return present
