"""The mission by hand: FastAPI, arq, Redis and S3. Tasks come again after a crash, and a watcher may come late."""

import asyncio
import json
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import boto3
import redis
import redis.asyncio
from arq import Retry, create_pool
from arq.connections import RedisSettings
from fastapi import FastAPI, Form, HTTPException, UploadFile
from fastapi.responses import StreamingResponse

from bench.peers.side.mission_work import transform

URL, BUCKET = os.environ["MISSION_REDIS"], os.environ["MISSION_BUCKET"]
STAGES = 3
DAY = 86_400

state: Any = redis.Redis.from_url(URL, decode_responses=True)
live: Any = redis.asyncio.Redis.from_url(URL, decode_responses=True)


@cache
def s3() -> Any:
    return boto3.client("s3", endpoint_url=os.environ["MISSION_S3"])


def tell(job_id: str, **facts: Any) -> None:
    with state.pipeline() as pipe:
        pipe.hset(f"job:{job_id}", mapping=facts).expire(f"job:{job_id}", 7 * DAY)
        pipe.publish(f"progress:{job_id}", json.dumps(facts)).execute()


def convert(job_id: str, number: int, seconds: float) -> None:
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


async def stage(ctx: dict[str, Any], job_id: str, number: int, seconds: float) -> None:
    try:
        await asyncio.to_thread(convert, job_id, number, seconds)
    except Exception as error:
        if ctx["job_try"] == WorkerSettings.max_tries:
            await asyncio.to_thread(tell, job_id, status="failed", error=str(error))
        raise Retry(defer=2 ** ctx["job_try"]) from error
    if number < STAGES:
        await ctx["redis"].enqueue_job("stage", job_id, number + 1, seconds)
    else:
        await asyncio.to_thread(tell, job_id, status="completed")


class WorkerSettings:
    functions = (stage,)
    redis_settings = RedisSettings.from_dsn(URL)
    max_jobs = int(os.environ["MISSION_JOBS"])
    max_tries = 4
    job_timeout = 20  # a killed worker's jobs come again ten seconds after that
    poll_delay = 0.05
    keep_result = 0


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    app.state.queue = await create_pool(RedisSettings.from_dsn(URL))
    yield


app = FastAPI(lifespan=lifespan)


@app.post("/jobs", status_code=202)
async def submit(file: UploadFile, seconds: float = Form(0.0)) -> dict[str, str]:
    job_id = str(uuid.uuid4())
    await asyncio.to_thread(s3().upload_fileobj, file.file, BUCKET, f"{job_id}/0")
    await asyncio.to_thread(tell, job_id, status="pending")
    await app.state.queue.enqueue_job("stage", job_id, 1, seconds)
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
