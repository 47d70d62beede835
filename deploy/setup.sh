#!/bin/sh
# Installs what the named parts (build, test, lint, cluster) need and this machine lacks. Says what before it does it.
set -eu
packages='gcc libc6-dev libudev-dev pkg-config'
for part in "$@"; do
  case "$part" in
    build) ;;
    lint) ;;
    # podman with what a container on a bare machine needs; umockdev plays USB devices; busybox is the test image.
    test)
      packages="$packages podman runc umockdev busybox-static"
      python3 -c 'import ensurepip' 2>/dev/null || packages="$packages python3-venv" ;;
    # What a Kubernetes on this machine needs beside the programs that tests/cluster/build.sh makes.
    cluster) packages="$packages busybox-static containernetworking-plugins etcd-server iproute2 openssl runc" ;;
    *) echo "setup: unknown part '$part', must be build, test, lint or cluster" >&2; exit 2 ;;
  esac
done

if ! command -v rustup >/dev/null; then
  echo "setup: rustup is not here; install Rust with it, then try again" >&2
  exit 1
fi
if ! rustup show active-toolchain >/dev/null 2>&1; then
  echo "setup: will install the Rust toolchain named in rust-toolchain.toml"
  rustup toolchain install --no-self-update
fi
if ! [ -d "$(rustc --print sysroot)/lib/rustlib/wasm32-wasip2" ]; then
  echo "setup: will install the Rust target wasm32-wasip2"
  rustup target add wasm32-wasip2
fi
for component in clippy rustfmt; do
  cargo "$(echo $component | sed s/rustfmt/fmt/)" --version >/dev/null 2>&1 || rustup component add "$component"
done

case " $* " in *" lint "*)
  if ! [ -x "${LEAFHOST_TOOLS:=$HOME/.cache/leafhost/tools}/bin/cargo-deny" ]; then
    echo "setup: will build cargo-deny in $LEAFHOST_TOOLS (some minutes, once)"
    cargo install --locked --quiet --root "$LEAFHOST_TOOLS" --version 0.20.2 cargo-deny
  fi ;;
esac

case " $* " in *" cluster "*) tests/cluster/build.sh >/dev/null ;; esac

missing=
if ! command -v dpkg-query >/dev/null; then
  echo "setup: no Debian here; make sure of what these packages hold: $packages"
  packages=
fi
for package in $packages; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
done
if [ -n "$missing" ]; then
  sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  echo "setup: will install with apt-get${sudo:+ (as root, through sudo)}:$missing"
  $sudo apt-get update -qq
  # shellcheck disable=SC2086
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
  # Debian starts an etcd for the machine; the cluster brings its own.
  case "$missing" in *" etcd-server"*)
    if [ -d /run/systemd/system ]; then $sudo systemctl disable --now --quiet etcd; fi ;;
  esac
fi

# A gRPC that is not ours, for the wire tests.
case " $* " in *" test "*)
  if ! "${LEAFHOST_PYTHON:=$HOME/.cache/leafhost/python}/bin/python" -c 'import grpc' 2>/dev/null; then
    echo "setup: will install grpcio in $LEAFHOST_PYTHON"
    python3 -m venv --clear "$LEAFHOST_PYTHON"
    "$LEAFHOST_PYTHON/bin/python" -m pip install --quiet --disable-pip-version-check --only-binary :all: grpcio==1.85.1
  fi ;;
esac
