#!/bin/sh
# Runs the agent in standalone mode on this machine, in <target>/run, with a live table. Ctrl-C ends both.
set -eu
target=$1
run=$target/run
mkdir -p "$run/handlers"
cp -R deploy/samples/standalone/. "$run/"
cp "$target"/handlers/*.wasm "$target"/handlers/*.grants.yaml "$run/handlers/"

# As root the agent writes the specs to /run/cdi, from where podman reads specs that last until the next boot; otherwise to
# target/run. An installed agent uses /etc/cdi.
cdi=$run/cdi
[ "$(id -u)" != 0 ] || cdi=/run/cdi

# The agent gets a session of its own. Otherwise Ctrl-C would be its first signal and the one below its second, which ends it at once.
setsid "$target/release/leafhost" agent --standalone "$run" --state-dir "$run/state" --cdi-dir "$cdi" \
  --no-kubelet --listen 127.0.0.1:0 --log-format text >"$run/log" 2>&1 &
agent=$!
finish() {
  kill "$agent" 2>/dev/null || true
  wait "$agent" 2>/dev/null || true
  # Skip this if another agent uses the folder.
  lock=$cdi/.akri.sh_leafhost.lock
  flock -n "$lock" rm -f "$cdi"/akri.sh-*_leafhost.json "$lock" 2>/dev/null || true
}
trap finish EXIT
trap : HUP INT TERM

echo "agent $agent runs in $run, its log is $run/log"
echo "CDI specs are in $cdi"
[ "$(id -u)" = 0 ] || echo "not root: podman before 5.5 reads only the system's folders, where root must put the specs; newer ones take --cdi-spec-dir"
"$target/release/leafhost" status --watch --state-dir "$run/state" || {
  status=$?
  [ $status -ge 128 ] || { echo "the last lines of $run/log:"; tail -n 20 "$run/log"; exit $status; }
}
