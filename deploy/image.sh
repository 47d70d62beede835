#!/bin/sh
# Writes the image NAME as an OCI archive to OUT, without a container engine; the same input gives the same bytes. Adds the files in the folder
# EXTRA. The other arguments are those of rootfs.sh.
# usage: image.sh PROGRAMS HANDLERS ARCH NAME OUT [EXTRA]
set -eu
programs=$1 handlers=$2 arch=$3 name=$4 out=$5 extra=${6-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root layout=$work/layout
"$(dirname "$0")/rootfs.sh" "$programs" "$handlers" "$arch" "$root"
[ -z "$extra" ] || cp -R -P "$extra/." "$root/"

archive() {
  tar -C "$1" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --format=posix \
    --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime -cf "$2" .
}
# Puts a file under its digest and prints its descriptor.
blob() {
  digest=$(sha256sum "$1" | cut -d' ' -f1)
  size=$(stat -c %s "$1")
  mv "$1" "$layout/blobs/sha256/$digest"
  printf '{"mediaType":"application/vnd.oci.image.%s","digest":"sha256:%s","size":%s%s}' "$2" "$digest" "$size" "${3-}"
}
mkdir -p "$layout/blobs/sha256"
archive "$root" "$work/layer"
contents=$(sha256sum "$work/layer" | cut -d' ' -f1)
unpacked=$(stat -c %s "$work/layer")
gzip -n "$work/layer"
layer=$(blob "$work/layer.gz" layer.v1.tar+gzip)
# The default user has no rights; whoever runs the agent, which needs root, must set the user, as the chart does.
# The C library uses one heap, without caches for each thread, and keeps no stacks of threads that have ended.
printf '{"architecture":"%s","os":"linux","config":{"User":"65532:65532","Entrypoint":["/usr/bin/leafhost"],"Cmd":["agent"],"Env":["PATH=/usr/bin","LEAFHOST_HANDLERS_DIR=/usr/share/leafhost/handlers","RUST_LIB_BACKTRACE=0","MALLOC_ARENA_MAX=1","GLIBC_TUNABLES=glibc.pthread.stack_cache_size=0:glibc.malloc.tcache_count=0"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
  "$arch" "$contents" >"$work/config"
config=$(blob "$work/config" config.v1+json)
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":%s,"layers":[%s]}' "$config" "$layer" >"$work/manifest"
manifest=$(blob "$work/manifest" manifest.v1+json ",\"platform\":{\"architecture\":\"$arch\",\"os\":\"linux\"},\"annotations\":{\"io.containerd.image.name\":\"$name\",\"org.opencontainers.image.ref.name\":\"${name##*:}\"}")
printf '{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[%s]}' "$manifest" >"$layout/index.json"
printf '{"imageLayoutVersion":"1.0.0"}' >"$layout/oci-layout"
mkdir -p "$(dirname "$out")"
archive "$layout" "$out"
echo "$out: $name, $(($(stat -c %s "$out") / 1000000)) MB, unpacked $((unpacked / 1000000)) MB"
