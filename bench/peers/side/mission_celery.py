"""The mission by hand: FastAPI, Celery, Redis and S3. Tasks come again after a crash, and a watcher may come late."""

import json
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import redis
import redis.asyncio
from celery import Celery
from fastapi import FastAPI, Form, HTTPException, UploadFile
from fastapi.responses import StreamingResponse

from bench.peers.side.mission_work import transform

URL, BUCKET = os.environ["MISSION_REDIS"], os.environ["MISSION_BUCKET"]
STAGES = 3
DAY = 86_400

state: Any = redis.Redis.from_url(URL, decode_responses=True)
live: Any = redis.asyncio.Redis.from_url(URL, decode_responses=True)
queue = Celery("mission", broker=URL)
queue.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
    broker_transport_options={
        "visibility_timeout": 30,
        "unacked_restore_interval": 5,
        "unacked_restore_throttle": 1,
        "unacked_restore_limit": 100,
    },
    broker_connection_retry_on_startup=True,
)


@cache
def s3() -> Any:
    return boto3.client("s3", endpoint_url=os.environ["MISSION_S3"])


def tell(job_id: str, **facts: Any) -> None:
    with state.pipeline() as pipe:
        pipe.hset(f"job:{job_id}", mapping=facts).expire(f"job:{job_id}", 7 * DAY)
        pipe.publish(f"progress:{job_id}", json.dumps(facts)).execute()


@queue.task(bind=True, max_retries=3, name="stage")
def stage(self: Any, job_id: str, number: int, seconds: float) -> None:
    try:
        with tempfile.TemporaryDirectory() as folder:
            source, made = Path(folder, "source"), Path(folder, "made")
            s3().download_file(BUCKET, f"{job_id}/{number - 1}", str(source))
            transform(
                source,
                made,
                seconds,
                lambda done, total: tell(job_id, status="running", stage=number, progress=100 * done // total),
            )
            s3().upload_file(str(made), BUCKET, f"{job_id}/{number}")
    except Exception as error:
        if self.request.retries == self.max_retries:
            tell(job_id, status="failed", error=str(error))
        raise self.retry(exc=error, countdown=2**self.request.retries) from error
    if number < STAGES:
        stage.delay(job_id, number + 1, seconds)
    else:
        tell(job_id, status="completed")


app = FastAPI()


@app.post("/jobs", status_code=202)
def submit(file: UploadFile, seconds: float = Form(0.0)) -> dict[str, str]:
    job_id = str(uuid.uuid4())
    s3().upload_fileobj(file.file, BUCKET, f"{job_id}/0")
    tell(job_id, status="pending")
    stage.delay(job_id, 1, seconds)
    return {"job_id": job_id}


@app.get("/jobs/{job_id}/events")
async def events(job_id: str) -> StreamingResponse:
    async def follow() -> AsyncIterator[str]:
        async with live.pubsub() as channel:
            await channel.subscribe(f"progress:{job_id}")
            facts = await live.hgetall(f"job:{job_id}")
            while facts:
                yield f"event: {facts['status']}\ndata: {json.dumps(facts)}\n\n"
                if facts["status"] in ("completed", "failed"):
                    return
                message = await channel.get_message(ignore_subscribe_messages=True, timeout=15)
                facts = json.loads(message["data"]) if message else await live.hgetall(f"job:{job_id}")

    return StreamingResponse(follow(), media_type="text/event-stream")


@app.get("/jobs/{job_id}/result")
def result(job_id: str) -> StreamingResponse:
    if state.hget(f"job:{job_id}", "status") != "completed":
        raise HTTPException(409, "The job has no result.")
    found = s3().get_object(Bucket=BUCKET, Key=f"{job_id}/{STAGES}")
    pieces: Iterator[bytes] = found["Body"].iter_chunks(1024 * 1024)
    return StreamingResponse(pieces, headers={"Content-Length": str(found["ContentLength"])})
