# The operator's image: one binary, no shell, no root. `make image` builds it.

# Debian 12 like the second stage: a binary wants the C library that it was linked with, or a later one.
FROM rust:1-slim-bookworm AS build
WORKDIR /build
# The dependencies are a layer of their own, built against empty sources: it stays until Cargo.toml or Cargo.lock change. The
# targets and the workspace members that Cargo.toml names must exist.
COPY Cargo.toml Cargo.lock build.rs ./
COPY crates/admission-cel/Cargo.toml crates/admission-cel/
COPY crates/core/Cargo.toml crates/core/
COPY tests/controlplane/Cargo.toml tests/controlplane/
COPY tests/fuzz/Cargo.toml tests/fuzz/
COPY tests/oracle/Cargo.toml tests/oracle/
RUN mkdir -p src benches crates/admission-cel/src crates/core/src tests/chaos tests/controlplane/src tests/fuzz/src tests/oracle/src \
    && echo 'fn main() {}' | tee src/main.rs benches/bench.rs tests/chaos/main.rs tests/controlplane/src/main.rs tests/fuzz/src/main.rs tests/oracle/src/main.rs > /dev/null \
    && touch src/lib.rs crates/admission-cel/src/lib.rs crates/core/src/lib.rs tests/controlplane/src/lib.rs tests/fuzz/src/lib.rs tests/oracle/src/lib.rs \
    && cargo build --release --locked --bin scpol
COPY crates/admission-cel/src crates/admission-cel/src
COPY crates/core/src crates/core/src
COPY src src
# `scpol check` knows the rights of the shipped roles by heart.
COPY config/rbac config/rbac
# Copied files keep their dates, which may be older than the build above.
RUN touch src/main.rs src/lib.rs crates/admission-cel/src/lib.rs crates/core/src/lib.rs && cargo build --release --locked --bin scpol

FROM gcr.io/distroless/cc-debian12:nonroot
COPY --from=build /build/target/release/scpol /scpol
# By number, so that `runAsNonRoot` can be checked.
USER 65532:65532
EXPOSE 8080
ENTRYPOINT ["/scpol"]
CMD ["run"]
