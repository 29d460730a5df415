#!/bin/sh
# Emits one event per branch, each with the order and what to do with it.
set -eu
read -r step
order=$(printf '%s\n' "$step" | sed -n 's/.*"orderId" *: *"\([^"]*\)".*/\1/p')
echo "{\"emit\": {\"name\": \"step.a.trigger\", \"payload\": {\"orderId\": \"$order\", \"task\": \"processPayment\"}}}"
echo "{\"emit\": {\"name\": \"step.b.trigger\", \"payload\": {\"orderId\": \"$order\", \"task\": \"updateInventory\"}}}"
