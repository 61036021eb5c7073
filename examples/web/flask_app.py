"""A web application on Flask with jobs: its views push, and `waybill worker` runs what they have pushed."""

from flask import Flask

from waybill import Jobs
from waybill.ojs import PushFailed

jobs = Jobs(push_timeout=5)  # the broker of WAYBILL_URL; a request waits no longer for it

app = Flask(__name__)


@jobs.handler("order.confirm", queue="flask-mail")
async def confirm(address: str) -> str:
    return f"sent to {address}"


@app.post("/orders/<address>")
def order(address: str) -> tuple[str, int]:
    try:
        job = confirm.push_sync(address)
    except PushFailed:
        return "try again later", 503
    return job.id, 202
