#!/bin/sh
# Copies the files of a release to FOLDER. The programs come from PROGRAMS; NATIVE is the same leafhost for this machine,
# which writes the completions and man pages. Needs no network.
set -eu
programs=$1 native=$2 handlers=$3 folder=$4
target=${CARGO_TARGET_DIR:-target}
rm -rf "$folder"
install -Dm755 -t "$folder/bin" "$programs/leafhost"
install -Dm755 -t "$folder/libexec/leafhost" "$programs/leafhost-compile"
install -Dm644 -t "$folder/share/leafhost/handlers" "$handlers"/*.wasm "$handlers"/*.grants.yaml

# Copies the files that cargo packages: the manifests of the SDK without the workspace.
sdk=$folder/share/leafhost/sdk
rm -f "$target"/package/leafhost-sdk-*.crate
cargo package --quiet --locked --offline --allow-dirty --no-verify --exclude-lockfile -p leafhost-sdk-macros -p leafhost-sdk
mkdir -p "$sdk/macros"
tar -xzf "$target"/package/leafhost-sdk-[0-9]*.crate --strip-components=1 --no-same-owner -C "$sdk"
tar -xzf "$target"/package/leafhost-sdk-macros-*.crate --strip-components=1 --no-same-owner -C "$sdk/macros"
sed -i '/^\[dependencies.leafhost-sdk-macros\]/a path = "macros"' "$sdk/Cargo.toml"

share=$folder/share
mkdir -p "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d" "$share/man/man1"
"$native" completions bash >"$share/bash-completion/completions/leafhost"
"$native" completions zsh >"$share/zsh/site-functions/_leafhost"
"$native" completions fish >"$share/fish/vendor_completions.d/leafhost.fish"
"$native" man "$share/man/man1"
install -Dm644 -t "$folder/lib/systemd/system" deploy/systemd/leafhost.service
install -m644 LICENSE "$folder/LICENSE"
mkdir -p "$share/doc/leafhost"
deploy/licenses.sh >"$share/doc/leafhost/THIRD-PARTY-LICENSES"
install -m644 deploy/release.mk "$folder/Makefile"
(cd "$folder" && find bin lib libexec share Makefile LICENSE -type f | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
