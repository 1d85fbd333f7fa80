# The image of kg: two names for one static binary and nothing else, no shell, no
# package. Versions are nowhere in this file: the toolchain's is in go.mod, the
# release's in manifests/helm/kilo/Chart.yaml, and make passes both on.
#
#   make image                                     from ready binaries, no other image needed
#   docker build --build-arg GO_VERSION=… .        from source, with Go's own image
ARG GO_VERSION

FROM scratch AS base
LABEL org.opencontainers.image.title="Kilo Overlay" \
      org.opencontainers.image.description="Joins the locations of a Kubernetes cluster with WireGuard, on top of the CNI that it runs" \
      org.opencontainers.image.source="https://github.com/kilo-overlay/kilo" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV PATH=/usr/bin
# Root, with the two capabilities that the pod grants: the kernel asks for both.
USER 0
ENTRYPOINT ["kg"]

# What make has compiled into dist/image.
FROM base AS ready
ARG TARGETARCH
COPY dist/image/linux_${TARGETARCH}/ /

FROM --platform=$BUILDPLATFORM golang:${GO_VERSION} AS build
ARG TARGETARCH
WORKDIR /src
COPY . .
RUN make binaries ARCH=${TARGETARCH} && mv dist/image/linux_${TARGETARCH} /image

FROM base
COPY --from=build /image/ /
