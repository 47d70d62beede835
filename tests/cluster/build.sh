#!/bin/sh
# Builds Kubernetes, containerd and Helm for the cluster tests from the Go modules in go/, once for each state of go.mod and go.sum.
# With the argument `kubelet-1.35` or `helm`, builds the program of the module of that name instead.
# Prints the folder that holds the programs, as its last line.
set -eu
cd "$(dirname "$0")/go"

case "${1:-}" in
  '')
    what='Kubernetes, containerd and Helm' effort='a quarter of an hour'
    modules='kubernetes containerd helm helm3'
    programs='kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl containerd containerd-shim-runc-v2 ctr helm helm3' ;;
  kubelet-1.35) what='the kubelet of Kubernetes 1.35' effort='some minutes' modules=kubelet-1.35 programs=kubelet ;;
  helm) what=Helm effort='some minutes' modules=helm programs=helm ;;
  *) echo "cluster: unknown argument '$1', must be kubelet-1.35, helm or none" >&2; exit 2 ;;
esac
cache=${LEAFHOST_CLUSTER:-$HOME/.cache/leafhost/cluster}
state=$(for module in $modules; do cat "$module/go.mod" "$module/go.sum"; done | sha256sum | cut -c1-16)

# A folder of this name is whole: it gets the name when everything in it is built.
if [ -d "$cache/$state" ]; then
  echo "$cache/$state"
  exit 0
fi
if ! command -v go >/dev/null; then
  echo 'cluster: go is not here; install Go 1.26 or later, then try again' >&2
  exit 1
fi
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if [ -d "$cache/$state" ]; then
  echo "$cache/$state"
  exit 0
fi
rm -rf "$cache"/half-built.*
half=$(mktemp -d "$cache/half-built.XXXXXX")
trap 'rm -rf "$half"' EXIT

export CGO_ENABLED=0
echo "cluster: will build $what in $cache ($effort on two cores, once)" >&2
for module in $modules; do
  case $module in
    containerd) (cd containerd && nice go build -buildvcs=false -trimpath -ldflags '-s -w' -tags no_btrfs,no_devmapper,no_zfs -o "$half/" tool) ;;
    helm) (cd helm && nice go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$half/" tool) ;;
    # Charts are installed with Helm 3, too; both programs are called helm.
    helm3) (cd helm3 && nice go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$half/helm3" helm.sh/helm/v3/cmd/helm) ;;
    *)
      version=$(cd "$module" && go list -m -f '{{.Version}}' k8s.io/kubernetes)
      minor=${version#v1.}
      minor=${minor%%.*}
      package=k8s.io/component-base/version
      ldflags="-s -w -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor -X $package.gitTreeState=clean"
      (cd "$module" && nice go build -buildvcs=false -trimpath -ldflags "$ldflags" -o "$half/" tool) ;;
  esac
  echo "cluster: built the programs of tests/cluster/go/$module" >&2
done
for program in $programs; do
  [ -x "$half/$program" ] || { echo "cluster: the build made no $program" >&2; exit 1; }
done
chmod 755 "$half"
mv "$half" "$cache/$state"
trap - EXIT
echo "$cache/$state"
