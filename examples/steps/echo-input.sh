#!/bin/sh
# Returns its own input: an object with one key per event that came.
set -eu
read -r step
printf '{"result": %s}\n' "$(printf '%s\n' "$step" | sed 's/^.*"traceparent":"[^"]*","input"://; s/}$//')"
