# docker build -t kvplane . && docker run --rm -p 127.0.0.1:8090:8090 -p 127.0.0.1:50090:50090 -v ./kvplane.toml:/etc/kvplane/kvplane.toml:ro kvplane
FROM rust:1.95-bookworm AS build
# ZeroMQ and TLS are built from source: a C++ compiler and cmake.
RUN apt-get update && apt-get install -y --no-install-recommends cmake && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p kvplane && strip target/release/kvplane

FROM debian:bookworm-slim
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates libstdc++6 && rm -rf /var/lib/apt/lists/* \
    && useradd --system --no-create-home --uid 65532 kvplane
COPY --from=build /src/target/release/kvplane /usr/bin/kvplane
USER 65532:65532
EXPOSE 8090 50090
# A container's loopback is its own: listen addresses and who may ask ([auth]) belong into the file.
ENTRYPOINT ["/usr/bin/kvplane"]
CMD ["serve", "--config", "/etc/kvplane/kvplane.toml"]
