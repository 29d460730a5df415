#!/bin/sh
# One branch: takes a second and passes on the order with what became of it. Usage: branch.sh FIELD VALUE
set -eu
read -r step
order=$(printf '%s\n' "$step" | sed -n 's/.*"orderId" *: *"\([^"]*\)".*/\1/p')
sleep 1
echo "{\"result\": {\"orderId\": \"$order\", \"$1\": \"$2\"}}"
