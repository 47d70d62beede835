#!/bin/bash
# Runs the named steps in order and stops at the first that fails. Runs a failed test once more by itself; if the test then passes, the step
# continues, and the end of the output lists the test as flaky, below the minutes of each step and the reasons of skipped tests.
# usage: tests/run.sh STEP...
# STEP is check (the changed crates), check-all, doc, a target of make (lint, setup-…), or a suite: unit, crates (the tests of single crates), or one of tests/ by its name.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD steps=$*
target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
# Cargo sets this, too: tests of macros load libraries of the compiler.
LD_LIBRARY_PATH=$target/debug/deps:$(rustc --print target-libdir):$(rustc --print sysroot)/lib
export LD_LIBRARY_PATH
work=$(mktemp -d)
# Tests write here why they are skipped: what a successful test prints is not shown.
export LEAFHOST_SKIPPED=$work/skipped
minutes=() flaky=() is_built=

finish() {
  [ ${#minutes[@]} = 0 ] || printf '%s\n' '' 'minutes' "${minutes[@]}"
  [ ! -s "$LEAFHOST_SKIPPED" ] || { printf '%s\n' '' 'skipped tests'; sort "$LEAFHOST_SKIPPED" | uniq -c; }
  rm -rf "$work"
  [ ${#flaky[@]} = 0 ] || { printf 'flaky: %s\n' "${flaky[@]}"; echo "${#flaky[@]} flaky"; }
}
trap finish EXIT

# Builds the programs with tests and lists them: suite, folder of the package, program.
compile() {
  cargo "$@" --locked --message-format=json-render-diagnostics >"$work/json" || return 1
  sed -n 's|.*"package_id":"path+file://\([^#"]*\)#.*"kind":\["\([a-z-]*\)".*"name":"\([^"]*\)".*"overflow_checks":[a-z]*,"test":true.*"executable":"\([^"]*\)".*|\2\t\1\t\3\t\4|p' "$work/json" |
    awk -F'\t' -v OFS='\t' -v tests="$root/tests" '{
      suite = $1 != "test" ? "unit" : $2 == tests ? $3 : $2 == tests "/peers/rust" ? "peers" : "crates"
      print suite, $2, $4 }' >>"$work/programs"
}

# Builds all programs of the named suites once. Cargo would compile dependencies again for each other choice of packages.
build() {
  [ -z "$is_built" ] || return 0
  local name more=()
  for name in system peers cluster; do
    case " $steps " in *" $name "*) more+=(--test "$name") ;; esac
  done
  : >"$work/programs"
  compile build --workspace --bins --tests || return 1
  # A build of all tests leaves out those with `test = false`.
  [ ${#more[@]} = 0 ] || compile build --workspace "${more[@]}" || return 1
  case " $steps " in *" peers "*) compile build -p leafhost-peers --all-features --bins --tests || return 1 ;; esac
  make --no-print-directory handlers guests && is_built=yes
}

# Runs the programs of a suite; if a file is named, only those of packages in the folders that it lists.
suite() {
  local line kind folder program lines has_run=
  mapfile -t lines <"$work/programs"
  for line in "${lines[@]}"; do
    IFS=$'\t' read -r kind folder program <<<"$line"
    if [ "$kind" = "$1" ] && { [ -z "$2" ] || grep -qxF "$folder" "$2"; }; then
      has_run=yes
      tests "$folder" "$program" || return 1
    fi
  done
  [ -n "$has_run$2" ] || { echo "run: there is no suite '$1'" >&2; return 1; }
}

# Runs the tests of a program in the folder of its package, as cargo does, and once more those that failed.
tests() {
  local folder=$1 program=$2 name failed
  echo "== ${program#"$target/"}"
  (cd "$folder" && "$program") 2>&1 | tee "$work/log" && return 0
  # A killed program does not list its failed tests.
  grep -q '^test result: FAILED' "$work/log" || return 1
  mapfile -t failed < <(awk '/^failures:$/ {names = ""} /^    [^ ]+$/ {names = names substr($0, 5) "\n"} END {printf "%s", names}' "$work/log")
  [ ${#failed[@]} -gt 0 ] || return 1
  for name in "${failed[@]}"; do
    echo "== once more: $name"
    (cd "$folder" && "$program" --exact "$name") || return 1
    flaky+=("$name")
  done
}

check() {
  cargo fmt --check && cargo clippy --locked --workspace --all-targets -- -D warnings || return 1
  : >"$work/programs"
  compile test --no-run --workspace --lib --bins --test tidy && suite tidy "" || return 1
  if [ "$1" = all ]; then suite unit ""; else changed && suite unit "$work/changed"; fi
}

# Lists the folders of the packages that changed since the branch began (or in the last commit, if none did), and of packages that depend on them.
changed() {
  local base file folder
  base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
  [ "$base" != "$(git rev-parse HEAD)" ] || [ -n "$(git status --porcelain)" ] ||
    base=$(git rev-parse --quiet --verify HEAD^ || git hash-object -t tree /dev/null)
  { git diff --name-only "$base" -- && git ls-files --others --exclude-standard; } >"$work/files" || return 1
  if grep -qE '^(wit/|Cargo\.|[^/]*\.toml$)' "$work/files"; then
    cut -f2 "$work/programs" | sort -u >"$work/changed"
    return
  fi
  while read -r file; do
    # The crate `k8s` includes the definitions of the chart.
    case $file in deploy/chart/*) file=host/k8s/Cargo.toml ;; esac
    folder=$(dirname "$file")
    while [ "$folder" != . ] && ! [ -e "$folder/Cargo.toml" ]; do folder=$(dirname "$folder"); done
    case $folder in . | fuzz) ;; *) sed -n 's/^name = "\(.*\)"/\1/p;T;q' "$folder/Cargo.toml" ;; esac
  done <"$work/files" | sort -u | while read -r name; do
    cargo tree --locked --workspace --edges normal,build,dev --prefix none --format '{p}' --invert "$name" || exit 1
  done | sed -n 's/.*(\(\/.*\))$/\1/p' | sort -u >"$work/changed"
}

step() {
  case $1 in
    check) check changed ;;
    check-all) check all ;;
    lint | setup-*) make --no-print-directory "$1" ;;
    doc) cargo test --locked --workspace --doc ;;
    *) suite "$1" "" ;;
  esac
}

# Measures the time of a function. Prints it only at the end.
timed() {
  local begun=$SECONDS name=$1 ended=0
  shift
  "$@" || ended=1
  minutes+=("$(awk -v name="$name" -v seconds=$((SECONDS - begun)) -v ended="$ended" \
    'BEGIN {printf "%6.1f  %s%s", seconds / 60, name, ended ? ", which failed" : ""}')")
  return $ended
}

for name in "$@"; do
  case $name in check | check-all | lint | doc | setup-*) ;; *) [ -n "$is_built" ] || timed build build || exit 1 ;; esac
  timed "$name" step "$name" || exit 1
done
