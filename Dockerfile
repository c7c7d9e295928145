# syntax=docker/dockerfile:1

# The exact version, so that two builds of one commit have one interpreter.
ARG BASE=python:3.11.14-slim-bookworm

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY epp epp
COPY plugins plugins
RUN pip wheel --no-cache-dir --no-deps -w /dist .
# Every dependency has a wheel; --only-binary keeps a missing one from asking for a compiler. pip writes
# the bytecode, too: the root file system is read-only where the image runs.
RUN --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    python -m venv --without-pip /opt/epp && \
    pip --python /opt/epp install --no-cache-dir --only-binary :all: -c /constraints.txt "$(echo /dist/*.whl)[kubernetes,dns]"

FROM ${BASE}
ARG VERSION=dev
LABEL org.opencontainers.image.title="endpoint-picker" \
      org.opencontainers.image.description="Endpoint picker for LLM inference gateways (Envoy ext_proc)" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /opt/epp /opt/epp
# Where the Go EPP's image has its program, for manifests with a `command`.
RUN mkdir /app && ln -s /opt/epp/bin/epp /app/epp
ARG COMMIT=
# What the metric llm_d_epp_info says.
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
