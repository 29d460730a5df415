#!/bin/sh
# Puts the results of both branches together.
set -eu
read -r step
field() { printf '%s\n' "$step" | sed -n "s/.*\"$1\" *: *\"\([^\"]*\)\".*/\1/p"; }
echo "{\"result\": {\"orderId\": \"$(field orderId)\", \"payment\": \"$(field paymentStatus)\", \"inventory\": \"$(field inventoryStatus)\", \"completed\": true}}"
