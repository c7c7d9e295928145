# syntax=docker/dockerfile:1

# Debian's Python 3.11, with Debian's security updates, and no pip. To fix the base for good:
# --build-arg BASE=debian@sha256:DIGEST
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update -qq && apt-get install -qq -y --no-install-recommends \
    ca-certificates gcc libc6-dev python3-dev python3-venv
WORKDIR /src
COPY requirements requirements
ARG PIP_INDEX_URL
# Every package is one of the locks, with its hash. --only-binary: none of them is compiled here.
# The secret, if given, is the bundle of certificates to trust, behind a proxy that has its own: docs/image.md.
RUN --mount=type=secret,id=ca \
    if [ -f /run/secrets/ca ]; then export PIP_CERT=/run/secrets/ca; fi && \
    python3 -m venv /build && \
    /build/bin/pip install --no-cache-dir --only-binary :all: --require-hashes -r requirements/release.txt && \
    python3 -m venv --without-pip /opt/epp && \
    /build/bin/pip --python /opt/epp install --no-cache-dir --no-compile --only-binary :all: \
        --require-hashes -r requirements/runtime.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY epp epp
COPY plugins/epp_plugins plugins/epp_plugins
# 1: the wheel of the path of requests compiled by mypyc, for this platform; 0: pure Python.
ARG COMPILED=1
# Seconds since 1970, the time of all files: two builds of a commit have the same /opt/epp. `make image` gives the commit's.
ARG SOURCE_DATE_EPOCH=1577836800
# Bytecode is written here, as the root file system may be read-only where the image runs. It is unchecked: Python then asks
# for no source file at a start, and the bytecode holds no time. -f: the build of the wheel imports some of the packages, and
# what Python writes then is checked, and holds a time.
# mypyc reads the types of the packages that the compiled modules import.
RUN EPP_COMPILED="${COMPILED}" PYTHONPATH="$(echo /opt/epp/lib/python3*/site-packages)" \
        /build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation -w /dist . && \
    /build/bin/pip --python /opt/epp install --no-cache-dir --no-compile --no-deps /dist/*.whl && \
    mkdir /opt/epp/share && \
    /build/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type application --output-reproducible \
        --output-file /opt/epp/share/sbom.cdx.json /opt/epp/bin/python && \
    python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/epp/lib && \
    find /opt/epp -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH}" {} +

FROM ${BASE}
RUN apt-get update -qq && \
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends ca-certificates python3 && \
    rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/* /var/log/*
COPY --from=build /opt/epp /opt/epp
# Where the Go EPP's image has its program, for manifests with a `command`.
RUN mkdir /app && ln -s /opt/epp/bin/epp /app/epp
ARG BASE
ARG VERSION=dev
ARG COMMIT=
ARG CREATED=
LABEL org.opencontainers.image.title="endpoint-picker" \
      org.opencontainers.image.description="Endpoint picker for LLM inference gateways (Envoy ext_proc)" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.base.name="${BASE}"
# EPP_COMMIT and EPP_BUILD_REF: what the metric llm_d_epp_info says.
ENV PATH=/opt/epp/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    EPP_COMMIT=${COMMIT} \
    EPP_BUILD_REF=${VERSION}
# A number, so that Kubernetes' runAsNonRoot can see that it is not root.
USER 65532:65532
# ext_proc, gRPC health, metrics
EXPOSE 9002 9003 9090
# For Docker and Compose; Kubernetes has probes of its own.
HEALTHCHECK --interval=10s --timeout=5s --start-period=10s CMD ["epp", "health"]
# Arguments of a container are flags of `epp serve`; other commands: docker run --entrypoint epp IMAGE.
ENTRYPOINT ["epp", "serve"]
