# syntax=docker/dockerfile:1

FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY epp epp
COPY plugins plugins
RUN pip wheel --no-cache-dir --no-deps -w /dist .

FROM python:3.11-slim
# The wheel and the lock are mounted, not copied: no layer of the image holds them. Every dependency
# has a wheel; --only-binary keeps a missing one from asking for a compiler.
RUN --mount=type=bind,from=build,source=/dist,target=/dist \
    --mount=type=bind,source=constraints.txt,target=/constraints.txt \
    pip install --no-cache-dir --only-binary :all: -c /constraints.txt /dist/*.whl
# A number, so that Kubernetes' runAsNonRoot can see that it is not root.
USER 65532:65532
# ext_proc, gRPC health, metrics
EXPOSE 9002 9003 9090
ENTRYPOINT ["epp"]
CMD ["serve"]
