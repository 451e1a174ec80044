# rfa-server as an image. Three targets:
#
#   docker build -t rfa-server:cpu .                          serving on CPUs, without torch (the default: the last stage)
#   docker build -t rfa-server:cuda-jit --target cuda-jit .   a machine with an NVIDIA GPU: serves, trains, measures; has a
#                                                             C compiler, for kernels are compiled where they run
#   docker build -t rfa-server:cuda --target cuda .           the same without compiler, training and benches: serves
#                                                             bundles that bring their GPU kernels
#
# A package index of your own, or a proxy's certificate, comes in as a secret that no layer keeps:
#   docker build --secret id=pip,src=pip.conf .
#
# All images run as user 10001 on a read-only root, log to stderr and end well on SIGTERM. They listen on every
# interface of the container, so the server refuses to start without API keys (RFA_API_KEYS_FILE) unless RFA_INSECURE=true.

# The digest is the pin, the tag is for readers. Another base needs Python 3.11 or newer as python3.
ARG BASE=docker.io/library/python:3.11.16-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84
# torch brings the CUDA libraries that it was built with: `base` has what the driver needs and no second copy of them.
ARG CUDA_BASE=docker.io/nvidia/cuda:13.0.2-base-ubuntu24.04@sha256:2ab6381d970b211fb93853796dc6707eb8a72575a375c422b17cf4d8b2641701


# pip stays in this stage: the environment that it fills has none.
FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/rfa
WORKDIR /src
# Dependencies first: a change of code does not install them again. Nothing is installed whose digest is not known.
COPY docs/deploy/requirements.lock docs/deploy/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/pip/bin/pip --python /opt/rfa/bin/python install --require-hashes --only-binary :all: \
    --requirement docs/deploy/requirements.lock
COPY . .
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/pip/bin/pip --python /opt/rfa/bin/python install --no-deps .
ENV NUMBA_CACHE_DIR=/opt/rfa/kernels
RUN docs/deploy/finish.sh /opt/rfa


FROM ${CUDA_BASE} AS cuda-build
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends python3 python3-venv && \
    rm -rf /var/lib/apt/lists/*
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/rfa
WORKDIR /src
COPY pyproject.toml constraints.txt ./
COPY docs/deploy/requirements.py docs/deploy/
# torch's wheel on PyPI for Linux is the CUDA build.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 docs/deploy/requirements.py gpu,redis,tracing > requirements.txt && \
    /opt/pip/bin/pip --python /opt/rfa/bin/python install --only-binary :all: --constraint constraints.txt \
    --requirement requirements.txt
COPY . .
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    /opt/pip/bin/pip --python /opt/rfa/bin/python install --no-deps .
ENV NUMBA_CACHE_DIR=/opt/rfa/kernels
RUN docs/deploy/finish.sh /opt/rfa


FROM ${CUDA_BASE} AS cuda
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends python3 && \
    rm -rf /var/lib/apt/lists/*
COPY --from=cuda-build /opt/rfa /opt/rfa
ENV PATH=/opt/rfa/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Where a read-only root has its writable mount: the image's kernels go there before the server starts, and what Triton
# and matplotlib keep is there, too.
ENV HOME=/tmp
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /srv/rfa
COPY LICENSE docs/deploy/healthcheck.py docs/deploy/start.sh ./
USER 10001:10001
# Requests; and /health, /ready and /metrics where no crowd of clients reaches: publish the first alone.
EXPOSE 8000 8001
ENV RFA_HEALTH_PORT=8001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "/srv/rfa/healthcheck.py"]
ENTRYPOINT ["/srv/rfa/start.sh"]
LABEL org.opencontainers.image.title="rfa-server (CUDA)" \
      org.opencontainers.image.description="Robust Filter Attention on an NVIDIA GPU, by kernels that bundles bring" \
      org.opencontainers.image.licenses="Apache-2.0"


FROM cuda AS cuda-jit
USER 0:0
# Triton compiles a small launcher when a kernel first runs, hence the compiler and Python's headers.
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev && \
    rm -rf /var/lib/apt/lists/*
# What trains, and what measures: `rfa gpu-check` runs from the image. pip stays where it is.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=bind,from=cuda-build,source=/opt/pip,target=/opt/pip \
    --mount=type=bind,from=cuda-build,source=/src,target=/src \
    python3 /src/docs/deploy/requirements.py train > /requirements.txt && \
    /opt/pip/bin/pip --python /opt/rfa/bin/python install --no-cache-dir --only-binary :all: \
    --constraint /src/constraints.txt --requirement /requirements.txt && \
    rm /requirements.txt && \
    cp -R /src/benchmarks /opt/rfa/lib/python3*/site-packages/rfa/
USER 10001:10001
LABEL org.opencontainers.image.title="rfa-server (CUDA, with a compiler)" \
      org.opencontainers.image.description="Robust Filter Attention: train, measure and serve on an NVIDIA GPU's machine"


FROM ${BASE} AS cpu
COPY --from=build /opt/rfa /opt/rfa
ENV PATH=/opt/rfa/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Where a read-only root has its writable mount; the kernels of the image go there before the server starts.
ENV HOME=/tmp
# The default bundles come with the package; a folder mounted at ./bundles is served instead.
WORKDIR /srv/rfa
COPY LICENSE docs/deploy/healthcheck.py docs/deploy/start.sh ./
# A number, so that Kubernetes can see that it is not root.
USER 10001:10001
# Requests; and /health, /ready and /metrics where no crowd of clients reaches: publish the first alone.
EXPOSE 8000 8001
ENV RFA_HEALTH_PORT=8001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "/srv/rfa/healthcheck.py"]
ENTRYPOINT ["/srv/rfa/start.sh"]
LABEL org.opencontainers.image.title="rfa-server" \
      org.opencontainers.image.description="Text generation and state estimation that say how sure they are (Robust Filter Attention)" \
      org.opencontainers.image.licenses="Apache-2.0"
