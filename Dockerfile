# The ds program in an image without compiler: docker build -t ds .
# Then, in a folder with data: docker run --rm -v "$PWD:/work" ds train --model config.json ...
# tests/package/check_dockerfile.py follows these instructions without Docker.
FROM debian:bookworm AS build
WORKDIR /src
COPY . .
RUN scripts/package

FROM debian:bookworm-slim
COPY --from=build /src/build/package/out/libds[0-9].[0-9]_*.deb /src/build/package/out/ds_*.deb /packages/
RUN dpkg -i /packages/*.deb && rm -r /packages
WORKDIR /work
ENTRYPOINT ["ds"]
CMD ["--help"]
