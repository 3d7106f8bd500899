# The images of docker-compose.yml: `light` for the stages that compute no tensors (with the documentation as a site),
# `learn` for the learner (and the simulator), `sglang-cpu` for an engine without a GPU. The last two share the layer
# with torch, by far the largest.
# No part needs BuildKit.
ARG PYTHON=python:3.11-slim-bookworm
FROM $PYTHON AS base
ENV PATH=/opt/onward/bin:$PATH PYTHONPATH=/app:/app/kernels PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
# Named volumes are made as these directories are: the user's.
RUN useradd --uid 10001 --create-home onward && mkdir -m 700 /run/secrets && mkdir /app /data /blobs \
    && chown onward:onward /run/secrets /data /blobs
COPY deploy/install-lock /usr/local/bin/

FROM base AS packages
COPY deploy/light.lock /opt/locks/
RUN install-lock /opt/locks/light.lock

FROM packages AS site
COPY deploy/docs.lock /opt/locks/
RUN install-lock /opt/locks/docs.lock
COPY . /app
RUN cd /app && NO_MKDOCS_2_WARNING=1 python -m mkdocs build

FROM packages AS light
COPY deploy/image /usr/local/bin/
COPY . /app
COPY --from=site /app/build/site /app/build/site
RUN python -m compileall -q /app && mkdir -m 700 /run/secrets/all /run/secrets/api /run/secrets/stages \
    /run/secrets/postgres /run/secrets/simulator && mkdir /engine && chown -R onward:onward /run/secrets /engine
WORKDIR /data
USER onward
EXPOSE 8700 9100
ENTRYPOINT ["with-secrets", "python", "-m", "onward"]
CMD ["api", "/data"]

FROM base AS torch
COPY deploy/torch.lock /opt/locks/
RUN install-lock /opt/locks/torch.lock

FROM torch AS learn
COPY deploy/image /usr/local/bin/
COPY . /app
RUN python -m compileall -q /app
WORKDIR /data
USER onward
EXPOSE 9100
ENTRYPOINT ["with-secrets", "python", "-m", "onward"]
CMD ["learn", "/data"]

FROM torch AS sglang-cpu
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends gcc libc6-dev libnuma1 >/dev/null \
    && rm -rf /var/lib/apt/lists/*
COPY deploy/sglang-cpu/requirements.lock deploy/sglang-cpu/engine.lock /opt/locks/
RUN install-lock /opt/locks/requirements.lock && install-lock /opt/locks/engine.lock --no-deps
COPY deploy/sglang-cpu/sgl_kernel /opt/onward/lib/python3.11/site-packages/sgl_kernel
COPY deploy/image /usr/local/bin/
ENV SGLANG_USE_CPU_ENGINE=1 SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 \
    TOKENIZERS_PARALLELISM=false ONWARD_ENGINE_FORKING=1
COPY serving/engines/sglang/launcher.py /opt/launcher/launcher.py
USER onward
EXPOSE 30000
ENTRYPOINT ["with-arguments", "/engine/arguments", "python", "/opt/launcher/launcher.py", "--host", "0.0.0.0", "--port", "30000"]
