"""Drains the queues that have changed: once per turn of the node, and before commands that count on earlier ones.

The queues of the model know their consumers and never call them. Deliveries are made here, so that calls only lead from
the engines to the model.
"""

from waybill.engine.delivery.consumers import serve
from waybill.engine.delivery.readers import serve_readers
from waybill.engine.delivery.selections import LOWEST_PRIORITY, serve_selections
from waybill.model.drainable import Drainable
from waybill.model.message_queue import MessageQueue
from waybill.model.runtime import Runtime
from waybill.model.stream import Stream


def drain(runtime: Runtime) -> None:
    """Drain every dirty queue once, and those that this makes dirty in turn (dead letters).

    Queues that the turn has no units left for are late. They go before those that were served in this turn: otherwise
    a queue that always needs a whole turn would make them wait forever.
    """
    waiting: list[Drainable] = []
    while runtime.dirty:
        queues = runtime.dirty
        runtime.dirty = []
        done = 0
        try:
            for queue in queues:
                done += 1
                if runtime.work_left <= 0:
                    waiting.append(queue)
                    continue
                runtime.work_left -= 1
                queue.is_dirty = False
                if queue.begin_drain():
                    _serve_consumers(queue)
        finally:
            # An exception that ends a drain must not make the queues behind it wait forever.
            if done < len(queues):
                runtime.dirty = queues[done:] + runtime.dirty
            if waiting:
                runtime.late = waiting + runtime.late
                waiting = []


def _serve_consumers(queue: Drainable) -> None:
    """Hand messages to consumers until messages, credit or the turn run out."""
    if isinstance(queue, MessageQueue):
        selections = queue.selections
        if len(selections) == 0 or serve_selections(queue, selections.to_serve()):
            serve(queue, LOWEST_PRIORITY)
    elif isinstance(queue, Stream):
        serve_readers(queue)


def catch_up(runtime: Runtime) -> None:
    """Continue work left over by earlier turns, as far as this one allows: queues, then chores."""
    runtime.take_up_late()
    drain(runtime)
    if runtime.chores:
        runtime.continue_chores()
        drain(runtime)
