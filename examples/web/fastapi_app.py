"""A web application on FastAPI with jobs: its endpoints push, and `waybill worker` runs what they have pushed."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException

from waybill import Jobs
from waybill.ojs import PushFailed

jobs = Jobs()  # the broker of WAYBILL_URL


@jobs.handler("order.confirm", queue="fastapi-mail")
async def confirm(address: str) -> str:
    return f"sent to {address}"


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
    async with jobs:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{address}", status_code=202)
async def order(address: str) -> str:
    try:
        job = await confirm.push(address)
    except PushFailed as error:
        raise HTTPException(503, "try again later") from error
    return job.id


@app.post("/gifts/{address}", status_code=202)
def gift(address: str) -> str:
    """An endpoint that is a plain function runs in a thread."""
    return confirm.push_sync(address).id
