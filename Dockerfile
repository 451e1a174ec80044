# Images of rfa-server, with three targets:
#
#   docker build -t rfa-server:cpu .                          serving on CPUs, without torch (the default target)
#   docker build -t rfa-server:cuda-jit --target cuda-jit .   serving, training and measuring on an NVIDIA GPU, with a C
#                                                             compiler, because kernels are compiled when they are used
#   docker build -t rfa-server:cuda --target cuda .           serving on an NVIDIA GPU without compiler, training and
#                                                             benchmarks; bundles must contain their GPU kernels
#
# The configuration of a package index or proxy is passed as a secret, which is not stored in a layer:
#   docker build --secret id=pip,src=pip.conf .
#
# All images run as user 10001 with a read-only root, log to stderr and shut down gracefully on SIGTERM. They listen on all
# interfaces of the container, so the server does not start without API keys (RFA_API_KEYS_FILE) unless RFA_INSECURE=true.

# The digest selects the image; the tag is for readers. Another base needs Python 3.11 or newer as python3.
ARG BASE=docker.io/library/python:3.11.16-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84
# torch includes the CUDA libraries that it was built with, so `base` contains only what the driver needs.
ARG CUDA_BASE=docker.io/nvidia/cuda:13.0.2-base-ubuntu24.04@sha256:2ab6381d970b211fb93853796dc6707eb8a72575a375c422b17cf4d8b2641701


# pip is used only in this stage; the environment does not contain it.
FROM ${BASE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/rfa
WORKDIR /src
# Dependencies are installed first, so that a change of code does not install them again. Packages need a known digest.
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
# On Linux, the wheel of torch on PyPI is the CUDA build.
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
# A writable mount in a read-only root. The kernels of the image are copied there before the server starts, and Triton and
# matplotlib store their caches there.
ENV HOME=/tmp
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
WORKDIR /srv/rfa
COPY LICENSE docs/deploy/healthcheck.py docs/deploy/start.sh ./
USER 10001:10001
# 8000 for requests, 8001 for /health, /ready and /metrics. Publish only the first one.
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
# When a kernel is first used, Triton compiles a launcher, which needs a compiler and the headers of Python.
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install --yes --no-install-recommends gcc libc6-dev python3-dev && \
    rm -rf /var/lib/apt/lists/*
# Packages for training and measuring: `rfa gpu-check` runs from this image. pip remains in its own stage.
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
# A writable mount in a read-only root. The kernels of the image are copied there before the server starts.
ENV HOME=/tmp
# The package contains the default bundles. A directory mounted at ./bundles is served instead.
WORKDIR /srv/rfa
COPY LICENSE docs/deploy/healthcheck.py docs/deploy/start.sh ./
# A number, so that Kubernetes can check that the user is not root.
USER 10001:10001
# 8000 for requests, 8001 for /health, /ready and /metrics. Publish only the first one.
EXPOSE 8000 8001
ENV RFA_HEALTH_PORT=8001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["python", "/srv/rfa/healthcheck.py"]
ENTRYPOINT ["/srv/rfa/start.sh"]
LABEL org.opencontainers.image.title="rfa-server" \
      org.opencontainers.image.description="Text generation and state estimation that say how sure they are (Robust Filter Attention)" \
      org.opencontainers.image.licenses="Apache-2.0"
