# docker build -t kvplane .
# docker run --rm --network host kvplane
# docs/guide/install.md has more: in a container, loopback is the container's own.
FROM rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# Everything that is not Rust is built by the C compiler of the image.
# There is no .git here: docker build --build-arg KVPLANE_COMMIT=$(git rev-parse --short HEAD) says which commit it is.
ARG KVPLANE_COMMIT=unknown
RUN KVPLANE_COMMIT=$KVPLANE_COMMIT cargo build --release --locked -p kvplane && strip target/release/kvplane

FROM debian:bookworm-slim
RUN useradd --system --no-create-home --shell /usr/sbin/nologin --uid 65532 kvplane
COPY --from=build /src/target/release/kvplane /usr/bin/kvplane
COPY deploy/kvplane.toml /etc/kvplane/kvplane.toml
USER 65532:65532
EXPOSE 8090 50090
# Once every engine has had a verdict, or 30 seconds after the start; /healthz and /readyz need no token. The configuration says
# which address to ask, and whether over TLS.
HEALTHCHECK --interval=10s --timeout=5s --start-period=40s CMD ["/usr/bin/kvplane", "ready", "--config", "/etc/kvplane/kvplane.toml"]
ENTRYPOINT ["/usr/bin/kvplane"]
CMD ["serve", "--config", "/etc/kvplane/kvplane.toml", "--log-format", "json"]
