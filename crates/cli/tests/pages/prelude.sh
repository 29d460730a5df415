# The shell that the blocks of a page run in; see main.rs. What is set for it: ROOT (the repository), EXAMPLES (built
# programs), PORT and OTHER_PORT (free ones), NAME (of this page and process), FLOWLINE_STORE and FLOWLINE_LISTEN.
set -eEuo pipefail
set -m # every job in the background is a process group of its own
WHERE=start
STATUS=0
background=()

at() {
    WHERE=$1
    echo "--- $1" >&2
}

# end PID: asks a process group to stop, and waits until it has.
end() {
    kill -TERM -- "-$1" 2>/dev/null
    for _ in $(seq 200); do
        kill -0 -- "-$1" 2>/dev/null || return 0
        sleep 0.05
    done
    kill -KILL -- "-$1"
}

leave() {
    STATUS=$?
    trap - ERR
    set +e
    for pid in "${background[@]}"; do end "$pid"; done
    if declare -F cleanup >/dev/null; then cleanup; fi
    exit "$STATUS"
}
trap leave EXIT
trap 'echo "--- failed: $WHERE: $BASH_COMMAND" >&2' ERR

# What a reader with a checkout types; here the binary is built already.
cargo() {
    case "$1 ${2:-}" in
    "run --" | "run --release")
        while [ "$1" != -- ]; do shift; done
        shift
        flowline "$@"
        ;;
    *)
        echo "cargo $*: not run here; mark the block with \`skip\`" >&2
        return 1
        ;;
    esac
}

# An answer that is an error fails the page. What it says is kept for `heard`.
curl() {
    command curl -sS --fail-with-body "$@" | tee .heard
}

# heard: the answer to the last request.
heard() {
    cat .heard
}

# shown VERB FILE…: see shown.py.
shown() {
    python3 "$ROOT/crates/cli/tests/pages/shown.py" "$@"
}

# request METHOD PATH FILE: sends what the page shows, with what was heard before in place of each text that ends in an ellipsis.
request() {
    shown fill "$3" >.request
    curl -X "$1" "http://$FLOWLINE_LISTEN$2" -H 'content-type: application/json' --data-binary @.request
}

# behind COMMAND…: runs it in the background until the page has ended, or `halt`.
behind() {
    "$@" </dev/null &
    background+=($!)
}

# halt: stops what was started in the background last.
halt() {
    end "${background[-1]}"
    unset 'background[-1]'
}

# The run that was created last.
last() {
    flowline runs --limit 1 --json | jq -r '.items[0].runId'
}

# eventually COMMAND…: repeats it until it succeeds, for a minute at most.
eventually() {
    local until=$((SECONDS + 60))
    while [ $SECONDS -lt $until ]; do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    echo "did not become true: $*" >&2
    return 1
}

# serving: waits until the server answers.
serving() {
    eventually curl "http://$FLOWLINE_LISTEN/readyz"
}

# has FILE TEXT…: each of the texts is in the file.
has() {
    local file=$1 text
    shift
    for text in "$@"; do
        grep -qF -- "$text" "$file" || {
            echo "no \"$text\" in:" >&2
            cat "$file" >&2
            return 1
        }
    done
}

# status RUN WORD…: the run has one of these.
status() {
    local found
    found=$(flowline show "$1" --json | jq -r .status)
    [[ " ${*:2} " = *" $found "* ]]
}

# ended RUN WORD: the run has ended like this, or does within a minute.
ended() {
    if eventually status "$1" completed failed cancelled && status "$1" "$2"; then return 0; fi
    flowline show "$1" >&2
    flowline events "$1" >&2
    return 1
}

# sql FILE: runs it on the page's store.
sql() {
    case "$FLOWLINE_STORE" in
    sqlite:*) sqlite3 -bail -readonly "${FLOWLINE_STORE#sqlite:}" <"$1" ;;
    *) psql -q -v ON_ERROR_STOP=1 "$FLOWLINE_STORE" <"$1" ;;
    esac
}

# example NAME [ARGUMENT...]: runs a program of crates/cli/examples.
example() {
    local program=$EXAMPLES/$1 source=$ROOT/crates/cli/examples/$1.rs
    if [ ! -x "$program" ] || [ "$source" -nt "$program" ]; then
        echo "$program is missing or old; build it with: cargo build -p flowline-cli --examples" >&2
        return 1
    fi
    "$program" "${@:2}"
}

# Programs of steps that the page does not show: one that succeeds with an empty object.
stubs() {
    local program
    for program in $(grep -oE '\./[A-Za-z0-9_/-]+\.(sh|py)' "$1" | sort -u || true); do
        [ -e "$program" ] || script "$program" "echo '{\"result\": {}}'"
    done
}

# script NAME CODE: a program of a step. It reads its line first, so that nobody writes into a closed pipe.
script() {
    mkdir -p "$(dirname "$1")"
    printf '#!/bin/sh\nread -r step\n%s\n' "$2" >"$1"
    chmod +x "$1"
}
