#!/bin/sh
# Stands in for real work: takes a moment and says what it did.
set -eu
sleep 0.1
echo "{\"result\": {\"did\": \"$1\"}}"
