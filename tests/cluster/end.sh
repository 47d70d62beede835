#!/bin/sh
# Ends test cluster NUMBER and removes what is left of it: every process in its control groups, its bridge, its folder.
# usage: end.sh NUMBER [when-input-ends]
set -u
name=lhc$1
folder=/var/cache/lhc/$1

# Whoever started the cluster holds the other end: however that process ends, so does the input.
if [ "${2-}" = when-input-ends ]; then
  trap '' HUP INT TERM
  cat >/dev/null
fi

groups() {
  find "/sys/fs/cgroup/$name" "/sys/fs/cgroup/unified/$name" /sys/fs/cgroup/*/"$name" "$@" 2>/dev/null
}

rounds=0
while pids=$(groups -name cgroup.procs -exec cat {} + | sort -u) && [ -n "$pids" ]; do
  # shellcheck disable=SC2086
  kill -9 $pids 2>/dev/null
  rounds=$((rounds + 1))
  if [ "$rounds" -gt 300 ]; then
    echo "cluster $1: these processes do not end:" $pids >&2
    exit 1
  fi
  sleep 0.05
done
groups -depth -type d -exec rmdir {} +
# The nodes' links, too: a namespace may outlive its processes for a while, and the link into it with it.
for link in "/sys/class/net/$name" "/sys/class/net/$name"[a-h]; do
  [ -e "$link" ] && ip link delete "${link##*/}" 2>/dev/null
done
rm -rf --one-file-system "$folder"
