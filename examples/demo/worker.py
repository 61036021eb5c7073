"""A worker process of the demo.

python -m examples.demo.worker URI NOTEBOOK
"""

import asyncio
import logging
import sys
import warnings
from pathlib import Path
from typing import Final

from examples.demo.jobs import QUEUE, make_jobs
from examples.demo.notebook import Notebook
from waybill import Worker

# Parsing is work for the processor, so a process does one job at a time (and CPython 3.11's parser now and then fails
# when two threads use it). A few jobs more are held, so that the next one is there when one is done.
CONCURRENCY: Final = 1
PREFETCH: Final = 8


async def main(uri: str, notebook_path: Path) -> None:
    jobs, _ = make_jobs(uri)
    notebook = Notebook(notebook_path)
    worker = Worker(
        jobs, queues=[QUEUE], concurrency=CONCURRENCY, prefetch=PREFETCH, grace_period=10, middleware=[notebook.record]
    )
    try:
        await worker.run()
    finally:
        notebook.close(worker.redelivered_count)


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)
    # Old files are full of what the compiler warns of.
    warnings.simplefilter("ignore")
    asyncio.run(main(sys.argv[1], Path(sys.argv[2])))
