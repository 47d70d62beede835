#!/bin/sh
# Writes the licences of all crates that are linked into the programs and handlers: a list, then each text once, after the crates that have it. Needs
# no network, because these crates have been built.
# usage: licenses.sh >FILE
set -eu
export LC_ALL=C
source=$(dirname "$0")/..
registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

linked() {
  "${CARGO:-cargo}" tree --quiet --locked --offline --manifest-path "$source/Cargo.toml" --edges normal,no-proc-macro --prefix none \
    --format '{p}|{l}' "$@"
}
linked -p leafhost -p leafhost-compile >"$work/linked"
set --
for handler in "$source"/handlers/*/; do
  set -- "$@" -p "handler-$(basename "$handler")"
done
linked --target wasm32-wasip2 "$@" >>"$work/linked"
# Our own crates have a path between the version and the licence.
sed -n 's/ (\*)$//; s/^\([^ ]*\) v\([^ |]*\)|/\1-\2|/p' "$work/linked" | sort -u >"$work/crates"

mkdir "$work/texts"
while IFS='|' read -r crate licence; do
  for folder in "$registry"/*/"$crate"; do :; done
  [ -d "$folder" ] || { echo "licenses: $crate is not in $registry; build the programs first" >&2; exit 1; }
  echo "$crate: ${licence:-see its text}"
  find "$folder" -maxdepth 1 -type f \( -iname 'licen[cs]e*' -o -iname 'copying*' -o -iname 'copyright*' -o -iname 'notice*' -o -iname 'unlicense*' \) | sort >"$work/files"
  while read -r file; do
    digest=$(sha256sum <"$file" | cut -d' ' -f1)
    echo "$crate" >>"$work/texts/$digest.crates"
    cp "$file" "$work/texts/$digest.text"
  done <"$work/files"
done <"$work/crates" >"$work/list"

echo 'Leafhost itself has the licence Apache-2.0. Its programs and handlers contain the standard library of Rust (MIT OR Apache-2.0) and these crates:'
echo
cat "$work/list"
# In the order of the first crate that has the text.
for crates in "$work"/texts/*.crates; do
  echo "$(head -n 1 "$crates") $crates"
done | sort | while read -r _ crates; do
  echo
  echo '--------------------------------------------------------------------------------'
  paste -s -d ' ' "$crates"
  echo
  cat "${crates%.crates}.text"
done
