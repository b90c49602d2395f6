# Comparisons in a container: `cargo xtask dist && docker build -t photofinish .`, then
# `docker run --rm -v photofinish:/var/lib/photofinish photofinish --quick` (docs/how-to/install.md).
FROM debian:trixie-slim

RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3-venv ca-certificates \
    && rm -rf /var/lib/apt/lists/*
COPY target/dist/photofinish_bench-*.whl /tmp/
RUN python3 -m venv /opt/photofinish \
    && /opt/photofinish/bin/python3 -m pip install --no-cache-dir --no-deps /tmp/photofinish_bench-*.whl \
    && rm /tmp/photofinish_bench-*.whl \
    && useradd --create-home --home-dir /var/lib/photofinish photofinish

# Libraries, models and results stay in the volume.
USER photofinish
WORKDIR /var/lib/photofinish
VOLUME /var/lib/photofinish
ENTRYPOINT ["/opt/photofinish/bin/photofinish"]
