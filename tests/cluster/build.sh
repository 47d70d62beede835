#!/bin/sh
# Builds Kubernetes, containerd and Helm for the cluster tests from the Go modules in go/, once for each state of go.mod and go.sum.
# Prints the folder that holds the programs, as its last line.
set -eu
cd "$(dirname "$0")/go"

programs='kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl containerd containerd-shim-runc-v2 ctr helm helm3'
cache=${LEAFHOST_CLUSTER:-$HOME/.cache/leafhost/cluster}
state=$(cat kubernetes/go.mod kubernetes/go.sum containerd/go.mod containerd/go.sum helm/go.mod helm/go.sum helm3/go.mod helm3/go.sum | sha256sum | cut -c1-16)

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
echo "cluster: will build Kubernetes, containerd and Helm in $cache (a quarter of an hour on two cores, once)" >&2
version=$(cd kubernetes && go list -m -f '{{.Version}}' k8s.io/kubernetes)
minor=${version#v1.}
minor=${minor%%.*}
package=k8s.io/component-base/version
ldflags="-s -w -X $package.gitVersion=$version -X $package.gitMajor=1 -X $package.gitMinor=$minor -X $package.gitTreeState=clean"
(cd containerd && nice go build -buildvcs=false -trimpath -ldflags '-s -w' -tags no_btrfs,no_devmapper,no_zfs -o "$half/" tool)
(cd helm && nice go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$half/" tool)
# Charts are installed with Helm 3, too; both programs are called helm.
(cd helm3 && nice go build -buildvcs=false -trimpath -ldflags '-s -w' -o "$half/helm3" helm.sh/helm/v3/cmd/helm)
echo 'cluster: containerd and Helm are built, Kubernetes comes next' >&2
(cd kubernetes && nice go build -buildvcs=false -trimpath -ldflags "$ldflags" -o "$half/" tool)
for program in $programs; do
  [ -x "$half/$program" ] || { echo "cluster: the build made no $program" >&2; exit 1; }
done
chmod 755 "$half"
mv "$half" "$cache/$state"
trap - EXIT
echo "$cache/$state"
