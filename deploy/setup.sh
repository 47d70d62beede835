#!/bin/sh
# Installs the packages that the named parts (build, test, lint, fuzz, cluster, dist, soak, release) need and this machine lacks. Prints their names first.
set -eu
packages='gcc libc6-dev libudev-dev pkg-config'
for part in "$@"; do
  case "$part" in
    build) ;;
    lint) ;;
    soak) ;;
    # libFuzzer is written in C++.
    fuzz) packages="$packages g++" ;;
    # podman with what a container on a bare machine needs; umockdev plays USB devices; busybox is the test image;
    # udev evaluates rules for comparison; wsdd answers probes like ONVIF cameras; faketime sets back the clock of one program; tmux is a terminal of any size.
    test)
      packages="$packages podman runc faketime umockdev udev busybox-static iproute2 tmux wsdd"
      python3 -c 'import ensurepip' 2>/dev/null || packages="$packages python3-venv"
      command -v node >/dev/null || packages="$packages nodejs"
      command -v npm >/dev/null || packages="$packages npm" ;;
    # Kubernetes on this machine needs these packages in addition to the programs that tests/cluster/build.sh builds.
    cluster) packages="$packages busybox-static containernetworking-plugins etcd-server iproute2 iptables openssl runc" ;;
    # Tools that build programs for arm64, and qemu to run them in a test. libudev must be that of the other architecture.
    dist) packages="$packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross libudev-dev:arm64 qemu-user" ;;
    # skopeo pushes images without a container engine; docker-registry takes them in a dry run.
    release) packages="$packages docker-registry skopeo" ;;
    *) echo "setup: unknown part '$part', must be build, test, lint, fuzz, cluster, dist, soak or release" >&2; exit 2 ;;
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
case " $* " in *" dist "*)
  if ! [ -d "$(rustc --print sysroot)/lib/rustlib/aarch64-unknown-linux-gnu" ]; then
    echo "setup: will install the Rust target aarch64-unknown-linux-gnu"
    rustup target add aarch64-unknown-linux-gnu
  fi ;;
esac
for component in clippy rustfmt; do
  cargo "$(echo $component | sed s/rustfmt/fmt/)" --version >/dev/null 2>&1 || rustup component add "$component"
done

case " $* " in *" lint "*)
  if ! [ -x "${LEAFHOST_TOOLS:=$HOME/.cache/leafhost/tools}/bin/cargo-deny" ]; then
    echo "setup: will build cargo-deny in $LEAFHOST_TOOLS (some minutes, once)"
    cargo install --locked --quiet --root "$LEAFHOST_TOOLS" --version 0.20.2 cargo-deny
  fi ;;
esac

case " $* " in *" fuzz "*)
  if ! [ -x "${LEAFHOST_TOOLS:=$HOME/.cache/leafhost/tools}/bin/cargo-fuzz" ]; then
    echo "setup: will build cargo-fuzz in $LEAFHOST_TOOLS (some minutes, once)"
    cargo install --locked --quiet --root "$LEAFHOST_TOOLS" --version 0.13.2 cargo-fuzz
  fi ;;
esac

case " $* " in *" release "*)
  if ! [ -x "${LEAFHOST_TOOLS:=$HOME/.cache/leafhost/tools}/bin/cargo-cyclonedx" ]; then
    echo "setup: will build cargo-cyclonedx in $LEAFHOST_TOOLS (some minutes, once)"
    cargo install --locked --quiet --root "$LEAFHOST_TOOLS" --version 0.5.9 cargo-cyclonedx
  fi
  tests/cluster/build.sh helm >/dev/null ;;
esac

case " $* " in *" cluster "*) tests/cluster/build.sh >/dev/null ;; esac
case " $* " in *" soak "*) tests/cluster/build.sh kubelet-1.35 >/dev/null ;; esac

missing=
if ! command -v dpkg-query >/dev/null; then
  echo "setup: this is not Debian; install the contents of these packages yourself: $packages"
  packages=
fi
for package in $packages; do
  # A package that is installed for several architectures has a line for each.
  case "$package" in *:*) arch=${package#*:} ;; *) arch=$(dpkg --print-architecture) ;; esac
  dpkg-query -W -f '${db:Status-Status} ${Architecture}\n' "$package" 2>/dev/null | grep -qE "^installed ($arch|all)$" || missing="$missing $package"
done
if [ -n "$missing" ]; then
  sudo=
  [ "$(id -u)" = 0 ] || sudo=sudo
  echo "setup: will install with apt-get${sudo:+ (as root, through sudo)}:$missing"
  case "$missing" in *:arm64*) $sudo dpkg --add-architecture arm64 ;; esac
  $sudo apt-get update -qq
  # shellcheck disable=SC2086
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
  # Debian starts these services; the tests start their own.
  for service in docker-registry etcd wsdd; do
    case "$missing" in *" $service"*)
      if [ -d /run/systemd/system ]; then $sudo systemctl disable --now --quiet "$service"; fi ;;
    esac
  done
fi

# Installs third-party software for the tests: gRPC, and peers that speak ONVIF and OPC UA. A stamp file records what is installed.
installed() { [ "$(cat "$1/installed" 2>/dev/null)" = "$2" ]; }
case " $* " in *" test "*)
  : "${LEAFHOST_PYTHON:=$HOME/.cache/leafhost/python}" "${LEAFHOST_NODE:=$HOME/.cache/leafhost/node}"
  wanted=$(cksum <tests/peers/python/requirements.txt)
  if ! installed "$LEAFHOST_PYTHON" "$wanted"; then
    echo "setup: will install the Python packages of tests/peers/python/requirements.txt in $LEAFHOST_PYTHON"
    python3 -m venv --clear "$LEAFHOST_PYTHON"
    "$LEAFHOST_PYTHON/bin/python" -m pip install --quiet --disable-pip-version-check --no-warn-script-location \
      --no-deps --requirement tests/peers/python/requirements.txt
    echo "$wanted" >"$LEAFHOST_PYTHON/installed"
  fi
  wanted=$(cat tests/peers/node/package.json tests/peers/node/package-lock.json | cksum)
  if ! installed "$LEAFHOST_NODE" "$wanted"; then
    echo "setup: will install the packages of tests/peers/node/package.json in $LEAFHOST_NODE"
    mkdir -p "$LEAFHOST_NODE"
    cp tests/peers/node/package.json tests/peers/node/package-lock.json "$LEAFHOST_NODE"
    npm ci --prefix "$LEAFHOST_NODE" --ignore-scripts --no-audit --no-fund --loglevel error >/dev/null
    echo "$wanted" >"$LEAFHOST_NODE/installed"
  fi
  # Built again only if a source has changed.
  if command -v go >/dev/null; then
    (cd tests/system/go && CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o "${LEAFHOST_GO:=$HOME/.cache/leafhost/go}/handler" .)
  else
    echo 'setup: Go is not here; install Go 1.26 or later for the test with a handler in Go'
  fi ;;
esac
