#!/bin/sh
# Charges the card. The idempotency key is the same for every attempt of this step in this run: a bank that is given it
# charges once, however often the step is tried.
set -eu
read -r step
total=$(printf '%s\n' "$step" | sed -n 's/.*"total" *: *\([0-9][0-9]*\).*/\1/p')

echo "charging $total cents under $FLOWLINE_IDEMPOTENCY_KEY"
sleep 0.5
echo "{\"result\": {\"receipt\": \"receipt-$total\"}}"
