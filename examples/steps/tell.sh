#!/bin/sh
# Tells somebody. An action of a machine finds the state, the event and the context in its input.
set -eu
read -r step
text() { printf '%s\n' "$step" | sed -n "s/.*\"$1\" *: *\"\([^\"]*\)\".*/\1/p"; }

echo "{\"log\": {\"level\": \"info\", \"message\": \"$1\", \"state\": \"$(text state)\"}}"
echo "{\"result\": {\"told\": \"$1\"}}"
