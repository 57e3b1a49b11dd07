# The operator's image: one static binary; no shell, no libraries, no root.
#
#   docker build --tag REGISTRY/sidecar-policy:0.1.0 .
#
# It compiles in a container, so the machine needs docker 23 or later (which has BuildKit), podman or buildah, and nothing else; with
# --platform for another one. release/Dockerfile is its second stage, for a binary that is there already: `make image` and releases
# take that. Nothing that was compiled is kept: cargo goes by times of files, and would take that of another checkout.
ARG BUILDER=docker.io/library/rust:1.95.0-bookworm
FROM --platform=$BUILDPLATFORM $BUILDER AS build
ARG TARGETARCH
RUN if [ "${TARGETARCH:-$(dpkg --print-architecture)}" != "$(dpkg --print-architecture)" ]; then \
        case $TARGETARCH in arm64) compiler=gcc-aarch64-linux-gnu ;; *) compiler=gcc-x86-64-linux-gnu ;; esac; \
        apt-get -qq update && apt-get -qq install --no-install-recommends --yes "$compiler" "libc6-dev-$TARGETARCH-cross"; \
    fi
WORKDIR /src
COPY . .
# `scpol version` names the commit: --build-arg SCPOL_COMMIT="$(git rev-parse --short=12 HEAD)".
ARG SCPOL_COMMIT=""
RUN --mount=type=cache,sharing=locked,target=/usr/local/cargo/registry \
    CARGO_TARGET_DIR=/target release/binary.sh $TARGETARCH > /tmp/binary && cp "$(cat /tmp/binary)" /scpol

FROM scratch
COPY --from=build /scpol /scpol
# By number, so that the kubelet can check `runAsNonRoot`.
USER 65532:65532
EXPOSE 8080 8443
ENTRYPOINT ["/scpol"]
CMD ["run"]
