#!/bin/sh
# The first step of the order: stdin is one line of JSON, with the run's input under "input".
set -eu
read -r step
number() { printf '%s\n' "$step" | sed -n "s/.*\"$1\" *: *\([0-9][0-9]*\).*/\1/p"; }
text() { printf '%s\n' "$step" | sed -n "s/.*\"$1\" *: *\"\([^\"]*\)\".*/\1/p"; }

sleep 0.2
echo "order $(text order) over $(number total) cents looks right"
echo "{\"result\": {\"order\": \"$(text order)\", \"total\": $(number total)}}"
