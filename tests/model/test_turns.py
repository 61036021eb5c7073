"""What a turn has no room for goes on in the next ones, and everybody comes to it."""

from waybill.model.runtime import Drainable, Runtime
from waybill.storage.memory import MemoryStore


class Greedy(Drainable):
    """A queue that always needs a whole turn."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime
        self.turns = 0

    def drain(self) -> None:
        self.turns += 1
        self.runtime.work_left = 0
        self.runtime.put_off(self)


def test_queues_that_need_whole_turns_take_turns() -> None:
    runtime = Runtime(MemoryStore(), 1 << 20)
    queues = [Greedy(runtime) for _ in range(3)]
    for queue in queues:
        runtime.mark_dirty(queue)
    for _ in range(6):
        runtime.begin_turn()
        runtime.catch_up()
    assert [queue.turns for queue in queues] == [2, 2, 2]
