"""Takes back deliveries that peers hold for too long: connection by connection, over several turns."""

from collections.abc import Callable

from waybill.engine.server_engine import ServerEngine
from waybill.model.runtime import Chore, Runtime


class TimeoutCheck(Chore):
    """Asks each of `engines` once. Calls `failed` for those that raise an exception."""

    def __init__(
        self, runtime: Runtime, engines: list[ServerEngine], failed: Callable[[ServerEngine, Exception], None]
    ) -> None:
        self._runtime = runtime
        self._engines = engines
        self._failed = failed

    def work(self) -> bool:
        runtime = self._runtime
        while self._engines:
            if runtime.work_left <= 0:
                return False
            runtime.work_left -= 1
            engine = self._engines.pop()
            try:
                engine.check_timeouts(runtime.now)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is one connection's
                self._failed(engine, error)
        return True
