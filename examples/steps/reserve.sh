#!/bin/sh
# Reserves the goods in stock.
set -eu
sleep 0.3
echo '{"result": {"shelf": "B-17"}}'
