#!/bin/sh
# Copies the files of the image to ROOT: the programs from PROGRAMS, the handlers, and from Debian only the libraries that the programs load and
# the certificate authorities. ARCH is amd64 or arm64.
# usage: rootfs.sh PROGRAMS HANDLERS ARCH ROOT
set -eu
programs=$1 handlers=$2 arch=$3 root=$4
case "$arch" in
  amd64) multiarch=x86_64-linux-gnu loader=/lib64/ld-linux-x86-64.so.2 strip=strip ;;
  arm64) multiarch=aarch64-linux-gnu loader=/lib/ld-linux-aarch64.so.1 strip=aarch64-linux-gnu-strip ;;
  *) echo "image: the architecture is amd64 or arm64, not '$arch'" >&2; exit 2 ;;
esac
umask 022
rm -rf "$root"

install -Dm755 -t "$root/usr/bin" "$programs/leafhost"
install -Dm755 -t "$root/usr/libexec/leafhost" "$programs/leafhost-compile"
install -Dm644 -t "$root/usr/share/leafhost/handlers" "$handlers"/*.wasm "$handlers"/*.grants.yaml
# A build for tests has debug information.
if command -v $strip >/dev/null; then $strip --strip-debug "$root/usr/bin/leafhost" "$root/usr/libexec/leafhost/leafhost-compile"; fi

# A library is named in a program or in another library; the C library looks up hosts by itself.
needed() {
  LC_ALL=C objdump -p "$1" | sed -n 's/^ *NEEDED *//p'
}
todo=$(needed "$root/usr/bin/leafhost"; needed "$root/usr/libexec/leafhost/leafhost-compile")
while [ -n "$todo" ]; do
  more=
  for library in $todo; do
    case "$library" in ld-linux*) continue ;; esac
    to=$root/usr/lib/$multiarch/$library
    [ -e "$to" ] && continue
    from=/lib/$multiarch/$library
    [ -e "$from" ] || { echo "image: no $from; install libudev1:$arch" >&2; exit 1; }
    install -Dm644 "$(readlink -f "$from")" "$to"
    package=$(dpkg-query -S "/lib/$multiarch/$library" "/usr/lib/$multiarch/$library" 2>/dev/null | head -n 1 | cut -d: -f1)
    install -Dm644 "/usr/share/doc/$package/copyright" "$root/usr/share/doc/$package/copyright"
    more="$more $(needed "$to")"
  done
  todo=$more
done
# As on Debian, /lib and /lib64 are links: the loader has its place in both.
mkdir -p "$root/usr${loader%/*}"
install -Dm755 "$(readlink -f $loader)" "$root/usr$loader"
for folder in lib lib64; do
  if [ -d "$root/usr/$folder" ]; then ln -s "usr/$folder" "$root/$folder"; fi
done

mkdir -p "$root/etc/ssl/certs"
cat /usr/share/ca-certificates/mozilla/*.crt >"$root/etc/ssl/certs/ca-certificates.crt"
install -Dm644 -t "$root/usr/share/doc/ca-certificates" /usr/share/doc/ca-certificates/copyright
install -Dm644 "$(dirname "$0")/../LICENSE" "$root/usr/share/doc/leafhost/LICENSE"
"$(dirname "$0")/licenses.sh" >"$root/usr/share/doc/leafhost/THIRD-PARTY-LICENSES"
# The chart mounts folders of the node here.
mkdir -p "$root/dev" "$root/etc/cdi" "$root/proc" "$root/run/udev" "$root/sys" "$root/var/lib/kubelet" "$root/var/lib/leafhost"
mkdir -m 1777 "$root/tmp"
