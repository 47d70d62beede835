#!/bin/bash
# Creates the files of a release from the results of `make dist` and `make image`, and pushes image and chart to a registry. RELEASE.md describes
# each file. Publishes nothing else.
# usage: release.sh check                 fails unless the tree is as committed and has one version; a tag v* of the commit must name it
#        release.sh files TARGET OUT      makes the files in the folder OUT, which it empties; HANDLERS names the handlers
#        release.sh push OUT REGISTRY     pushes the image to REGISTRY/leafhost and the chart to REGISTRY/charts
#        release.sh try OUT               pushes them to a registry that it starts on this machine, and pulls them from there
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# Each crate is listed after the crates that it depends on.
crates=(leafhost-sdk-macros leafhost-sdk leafhost-uds leafhost-kubelet leafhost-cdi)
work=$(mktemp -d)
registry_pid=
trap '[ -z "$registry_pid" ] || kill "$registry_pid"; rm -rf "$work"' EXIT

fail() {
  echo "release: $1" >&2
  exit 1
}

check() {
  local file line tag
  [ -z "$(git status --porcelain)" ] || fail 'the tree differs from its commit; commit or stash the changes'
  for file in Cargo.toml sdk/Cargo.toml; do
    while IFS= read -r line; do
      case $line in *"version = \"$version\""*) ;; *) fail "$file: '$line' must have version $version" ;; esac
    done < <(grep -E '^leafhost-[a-z-]+ = \{ path' "$file")
  done
  for line in "version: $version" "appVersion: $version"; do
    grep -qxF "$line" deploy/chart/Chart.yaml || fail "deploy/chart/Chart.yaml must have '$line'"
  done
  for tag in $(git tag --points-at HEAD 'v*'); do
    [ "$tag" = "v$version" ] || fail "the tag $tag is on a commit with version $version; tag it v$version"
    grep -qE "^## ${version//./\\.}( |$)" CHANGELOG.md || fail "CHANGELOG.md must have a section '## $version'"
  done
  echo "release: version $version"
}

# Joins the images for two architectures to one OCI archive.
image() {
  local out=$1 arch manifests='' digest index=application/vnd.oci.image.index.v1+json layout=$work/layout
  mkdir "$layout"
  for arch in amd64 arm64; do
    tar -xf "$target/image/leafhost-$version-linux-$arch.tar" -C "$layout"
    manifests+=${manifests:+,}$(sed 's/.*"manifests":\[\(.*\),"annotations":.*/\1}/' "$layout/index.json")
  done
  printf '{"schemaVersion":2,"mediaType":"%s","manifests":[%s]}' "$index" "$manifests" >"$work/index"
  digest=$(sha256sum "$work/index" | cut -d' ' -f1)
  printf '{"schemaVersion":2,"mediaType":"%s","manifests":[{"mediaType":"%s","digest":"sha256:%s","size":%s,"annotations":{"org.opencontainers.image.ref.name":"%s"}}]}' \
    "$index" "$index" "$digest" "$(stat -c %s "$work/index")" "$version" >"$layout/index.json"
  mv "$work/index" "$layout/blobs/sha256/$digest"
  tar -C "$layout" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 --format=posix \
    --pax-option=exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime -cf "$out" .
}

# Lists the dependencies of each program and handler. cargo-cyclonedx writes beside each manifest of a workspace, so it gets a copy.
boms() {
  local out=$1 source=$work/source
  mkdir "$source"
  git archive HEAD | tar -xf - -C "$source"
  bom() {
    sed "s|$source|/leafhost|g" "$source/$1.cdx.json" >"$2"
  }
  list() {
    cargo cyclonedx --quiet --format json --spec-version 1.5 --target "$1" --manifest-path "$source/Cargo.toml"
  }
  list x86_64-unknown-linux-gnu
  bom host/cli/leafhost "$out/leafhost-$version-linux-amd64.cdx.json"
  bom host/compile/leafhost-compile "$out/leafhost-compile-$version-linux-amd64.cdx.json"
  list aarch64-unknown-linux-gnu
  bom host/cli/leafhost "$out/leafhost-$version-linux-arm64.cdx.json"
  bom host/compile/leafhost-compile "$out/leafhost-compile-$version-linux-arm64.cdx.json"
  list wasm32-wasip2
  local name
  for name in $HANDLERS; do
    bom "handlers/$name/handler-$name" "$out/handler-$name-$version.cdx.json"
  done
}

files() {
  local out=$2 arch name
  target=$1
  rm -rf "$out"
  mkdir -p "$out"
  for arch in amd64 arm64; do
    cp "$target/archives/leafhost-$version-linux-$arch.tar.gz" "$out/"
  done
  image "$out/leafhost-image-$version.tar"
  "$(tests/cluster/build.sh helm | tail -n 1)/helm" package deploy/chart --destination "$out" >/dev/null
  mv "$out/leafhost-$version.tgz" "$out/leafhost-chart-$version.tgz"
  cargo package --locked --no-verify --quiet "${crates[@]/#/--package=}"
  for name in "${crates[@]}"; do
    cp "$target/package/$name-$version.crate" "$out/"
  done
  boms "$out"
  (cd "$out" && sha256sum -- * >SHA256SUMS)
  ls -sh "$out"
}

push() {
  local out=$1 registry=$2 tls=() plain=()
  # A registry on this machine has no certificate.
  case $registry in localhost:* | 127.0.0.1:*) tls=(--dest-tls-verify=false) plain=(--plain-http) ;; esac
  (cd "$out" && sha256sum --quiet -c SHA256SUMS)
  skopeo copy --quiet --all "${tls[@]}" "oci-archive:$out/leafhost-image-$version.tar" "docker://$registry/leafhost:$version"
  # `skopeo login` keeps the password here.
  "$(tests/cluster/build.sh helm | tail -n 1)/helm" push "${plain[@]}" ${REGISTRY_AUTH_FILE:+--registry-config "$REGISTRY_AUTH_FILE"} \
    "$out/leafhost-chart-$version.tgz" "oci://$registry/charts"
  echo "release: pushed $registry/leafhost:$version and $registry/charts/leafhost:$version"
}

# Pushes to a registry of its own and compares what the registry has with the files.
try() {
  local out=$1 registry='' pushed helm
  cat >"$work/registry.yml" <<END
version: 0.1
log: {level: info}
storage: {filesystem: {rootdirectory: $work/registry}}
http: {addr: "127.0.0.1:0"}
END
  docker-registry serve "$work/registry.yml" >"$work/registry.log" 2>&1 &
  registry_pid=$!
  until [ -n "$registry" ]; do
    kill -0 "$registry_pid" 2>/dev/null || fail "docker-registry has ended: $(tail -n 1 "$work/registry.log")"
    sleep 0.1
    registry=$(sed -n 's/.*listening on \(127\.0\.0\.1:[0-9]*\).*/\1/p' "$work/registry.log")
  done
  push "$out" "$registry"
  pushed=$(skopeo inspect --raw --tls-verify=false "docker://$registry/leafhost:$version" | sha256sum)
  [ "$pushed" = "$(skopeo inspect --raw "oci-archive:$out/leafhost-image-$version.tar" | sha256sum)" ] || fail 'the image in the registry is not that of the file'
  helm=$(tests/cluster/build.sh helm | tail -n 1)/helm
  "$helm" pull --plain-http "oci://$registry/charts/leafhost" --version "$version" --destination "$work" >"$work/helm.log" 2>&1 || fail "$(cat "$work/helm.log")"
  cmp "$work/leafhost-$version.tgz" "$out/leafhost-chart-$version.tgz"
  kill "$registry_pid"
  registry_pid=
  echo 'release: image and chart were pushed to a registry on this machine and pulled from it'
}

case "${1-}/$#" in
  check/1) check ;;
  files/3) files "$2" "$3" ;;
  push/3) push "$2" "$3" ;;
  try/2) try "$2" ;;
  *) echo 'usage: release.sh check | files TARGET OUT | push OUT REGISTRY | try OUT' >&2; exit 2 ;;
esac
