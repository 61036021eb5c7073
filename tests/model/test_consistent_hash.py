"""The ring of a consistent-hash exchange follows its bindings, for the price of what changes."""

from random import Random

from waybill.model.binding import Binding
from waybill.model.consistent_hash import FEW_BITS, RING_POINTS, ConsistentHashExchange

BINDINGS = 2000
FEW_STEPS = 16
KEYS = [str(number) for number in range(200)]


def exchange_with(bindings: list[Binding]) -> ConsistentHashExchange:
    exchange = ConsistentHashExchange("e", durable=False, auto_delete=False, internal=False, arguments={})
    for binding in bindings:
        exchange.add(binding)
    return exchange


def binding(number: int, weight: int = 1) -> Binding:
    return Binding("e", f"q{number}", "queue", str(weight), {})


def routes(exchange: ConsistentHashExchange) -> list[str]:
    return [exchange.match(key, {}, RING_POINTS)[0].destination for key in KEYS]


def test_one_change_costs_little_however_many_bindings_there_are() -> None:
    bindings = [binding(number) for number in range(BINDINGS)]
    exchange = exchange_with(bindings)
    routes(exchange)
    exchange.remove(bindings[7])
    exchange.match("a", {}, RING_POINTS)
    assert exchange.steps < FEW_STEPS
    exchange.add(bindings[7])
    exchange.match("a", {}, RING_POINTS)
    assert exchange.steps < FEW_STEPS


def test_after_any_changes_it_routes_as_one_that_is_new() -> None:
    random = Random(3)
    there = {number: binding(number, 1 + number % 3) for number in range(100)}
    exchange = exchange_with(list(there.values()))
    routes(exchange)
    for _ in range(60):
        for _ in range(random.choice((1, 1, 2, 3, 100 >> FEW_BITS, 60))):
            number = random.randrange(200)
            if number in there:
                exchange.remove(there.pop(number))
            else:
                there[number] = binding(number, 1 + random.randrange(3))
                exchange.add(there[number])
        assert routes(exchange) == routes(exchange_with(list(there.values())))


def test_changes_that_no_message_sees_are_not_kept() -> None:
    bindings = [binding(number) for number in range(50)]
    exchange = exchange_with(bindings)
    before = routes(exchange)
    for _ in range(RING_POINTS + 1):
        exchange.remove(bindings[3])
        exchange.add(bindings[3])
    assert len(exchange._added) + len(exchange._removed) <= 2 * RING_POINTS
    assert routes(exchange) == before
